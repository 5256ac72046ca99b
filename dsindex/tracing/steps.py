"""The samples of a training step, as Megatron's sampler for pretraining deals them out.

Step s, counted from 1 as in Megatron's log, has the samples [(s - 1) * global_batch_size, s * global_batch_size). They
are dealt out in rounds of micro_batch_size * data_parallel_size samples, of which each rank takes a run of
micro_batch_size. This holds for a fixed global batch size and `--dataloader-type single`.

Source: megatron.training.datasets.data_samplers, MegatronPretrainingSampler.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """How samples are dealt out to steps and ranks.

    Raises:
        ValueError: If the sizes are not positive, or do not divide the global batch.
    """

    global_batch_size: int
    micro_batch_size: int | None = None
    data_parallel_size: int | None = None

    def __post_init__(self) -> None:
        given = (self.global_batch_size, self.micro_batch_size, self.data_parallel_size)
        if any(size is not None and size < 1 for size in given):
            msg = "expected batch sizes and a data-parallel size of at least 1"
            raise ValueError(msg)
        if (self.micro_batch_size is None) != (self.data_parallel_size is None):
            msg = "expected a micro-batch size and a data-parallel size, or neither: ranks depend on both"
            raise ValueError(msg)
        if self.global_batch_size % self._round:
            msg = (
                f"expected a global batch that {self.micro_batch_size} samples on {self.data_parallel_size} ranks "
                f"divide, got {self.global_batch_size}"
            )
            raise ValueError(msg)

    @property
    def _round(self) -> int:
        """Samples that all ranks take at once."""
        return (self.micro_batch_size or 1) * (self.data_parallel_size or 1)

    def samples(self, step: int, num_samples: int, *, rank: int | None = None) -> list[int]:
        """Return the samples of a step, or those of one rank, in its order.

        Args:
            step: Counted from 1.
            num_samples: Samples of the data.
            rank: Data-parallel rank; None for all.

        Raises:
            ValueError: If there is no such step or rank.
        """
        last = num_samples // self.global_batch_size
        if not 1 <= step <= last:
            msg = (
                f"expected a step from 1 to {last}, got {step}: the data has {num_samples} samples, in whole batches "
                f"of {self.global_batch_size}"
            )
            raise ValueError(msg)
        begin = (step - 1) * self.global_batch_size
        if rank is None:
            return list(range(begin, begin + self.global_batch_size))
        if self.micro_batch_size is None or self.data_parallel_size is None or not 0 <= rank < self.data_parallel_size:
            msg = f"expected a rank below the data-parallel size {self.data_parallel_size}, got {rank}"
            raise ValueError(msg)
        rounds = range(begin + rank * self.micro_batch_size, begin + self.global_batch_size, self._round)
        return [first + number for first in rounds for number in range(self.micro_batch_size)]

    def step_of(self, sample: int) -> int:
        """Return the step that reads a sample, counted from 1."""
        return sample // self.global_batch_size + 1

    def rank_of(self, sample: int) -> int | None:
        """Return the data-parallel rank that reads a sample; None if the sizes of ranks are not known."""
        if self.micro_batch_size is None:
            return None
        return sample % self._round // self.micro_batch_size
