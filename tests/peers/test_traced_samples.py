"""The samples that `dsindex trace` names for a step are those that Megatron's sampler gives all ranks there.

What the samples are is compared in test_gpt_samples.py, and their lines in tests/commands/test_trace.py. The sampler is
not in the package of megatron-core: the environment variable `MEGATRON_LM` is the path of a checkout of Megatron-LM.
"""

import importlib.util
import itertools
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dsindex.commands.trace import samples_of_steps

CHECKOUT = os.environ.get("MEGATRON_LM", "")
EMPTY = {"megatron.training": "get_args", "megatron.training.dist_signal_handler": "DistributedSignalHandler"}
SAMPLERS = ("megatron/training/datasets/data_samplers.py", "megatron/legacy/data/data_samplers.py")
"""Where the sampler is, in recent releases and in older ones."""


@pytest.fixture
def sampler(monkeypatch):
    """Megatron's MegatronPretrainingSampler; what its file imports for other things is left empty."""
    path = next((Path(CHECKOUT) / name for name in SAMPLERS if (Path(CHECKOUT) / name).is_file()), None)
    if not CHECKOUT or path is None:
        pytest.skip("MEGATRON_LM is not the path of a checkout of Megatron-LM")
    for name, empty in EMPTY.items():
        module = ModuleType(name)
        setattr(module, empty, None)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("data_samplers", path)
    samplers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(samplers)
    return samplers.MegatronPretrainingSampler


@pytest.mark.parametrize("seed", range(200))
def test_steps_have_the_samples_that_the_sampler_gives(seed, sampler):
    """The training starts at an earlier step, as it does after a checkpoint, and reads up to the one that is traced."""
    rng = np.random.default_rng(seed)
    micro, rounds, size = (int(rng.integers(1, 5)) for _ in range(3))
    batch = micro * rounds * size
    num_samples = int(rng.integers(batch, 9 * batch))
    step = int(rng.integers(1, num_samples // batch + 1))
    resumed = int(rng.integers(max(1, step - 2), step + 1))
    sample_numbers = []
    for rank in range(size):
        read = iter(sampler(num_samples, (resumed - 1) * batch, micro, rank, size))
        [*_, step_numbers] = itertools.islice(steps_of(read, rounds), step - resumed + 1)
        sample_numbers += step_numbers
    assert sorted(sample_numbers) == list(samples_of_steps(step, step, batch))


def steps_of(read, rounds):
    """Yield the samples of each step, from those of its micro batches."""
    while micro_batches := list(itertools.islice(read, rounds)):
        yield [number for micro_batch in micro_batches for number in micro_batch]
