"""Written by `python -m dsindex.api.stub`: the signatures of the API, with the options of each job."""

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from dsindex.api.boundary import OptionsError as OptionsError, Paths
from dsindex.api.index import Blend, IndexOptions as _IndexOptions
from dsindex.api.progress import Progress
from dsindex.api.ray_data import RayDataset, ray_datasource as ray_datasource
from dsindex.api.subjects import Subject, Subjects
from dsindex.api.tokenizers import TokenizerLike
from dsindex.datasets.gpt import SampleOptions
from dsindex.datasets.opening import Dataset
from dsindex.errors import DsindexError as DsindexError
from dsindex.execution.progress.reporter import Snapshot as Snapshot
from dsindex.instruction.config import InstructionConfig
from dsindex.jobs.index import OrderFunction
from dsindex.options.instruct import ExportKind
from dsindex.jobs.build import BuildResult as BuildResult
from dsindex.jobs.conversion import ConvertResult as ConvertResult
from dsindex.tools.estimate import EstimateResult as EstimateResult
from dsindex.jobs.trainers import ExportResult as ExportResult
from dsindex.jobs.index import IndexResult as IndexResult
from dsindex.tools.inspect import InspectResult as InspectResult
from dsindex.jobs.instruct import InstructResult as InstructResult
from dsindex.jobs.merge import MergeResult as MergeResult
from dsindex.tools.mix import MixResult as MixResult
from dsindex.jobs.pack import PackResult as PackResult
from dsindex.tools.report import ReportResult as ReportResult
from dsindex.jobs.rest import RestResult as RestResult
from dsindex.tools.trace import TraceResult as TraceResult
from dsindex.api.results import VerifyResult as VerifyResult

__version__: str
__all__: list[str]

class IndexOptions(_IndexOptions):
    """The options of the index caches that `dsindex.build` builds beside its datasets."""

    def __init__(
        self,
        *,
        data_cache_path: str | os.PathLike[str] | None = None,
        dataset_class: Literal['GPTDataset', 'GPTFIMDataset'] = 'GPTDataset',
        fim_data: bool = False,
        megatron_release: Literal['0.16', '0.17', '0.18', '0.19', 'main', 'nemo-automodel'] | None = None,
        job_tokenizer: Mapping[str, Any] | None = None,
        tokenizer_identifiers: str | os.PathLike[str] | None = None,
        like: str | os.PathLike[str] | None = None,
        dataset_path_as: Sequence[str] | None = None,
        plain_names: bool = False,
        layout: Literal['megatron', 'bigscience', 'maxtext'] = 'megatron',
        final_epoch_threshold: float = 0.8,
        split: str | None = None,
        seed: int | None = None,
        document_order: str = 'shuffled',
        document_order_splits: Sequence[Literal['train', 'valid', 'test']] = ('train',),
        shuffle_epochs: Literal['together', 'separately', 'never'] | None = None,
        no_extra_token: bool = False,
        keep_partial_validation: bool = False,
        mid_level_dataset_surplus: float = 0.005,
        train_samples: int | None = None,
        train_iters: int | None = None,
        global_batch_size: int | None = None,
        seq_length: int | None = None,
        epochs: float | Fraction | str | None = None,
        num_samples: int | str | Sequence[int | None] | None = None,
        eval_interval: int | None = None,
        eval_iters: int = 100,
        full_validation: bool = False,
        skip_train: bool = False,
        start_eval_at_iter: int | None = None,
        eval_global_batch_size: int | None = None,
        phase_transition_iterations: Sequence[int] | str = (),
        rampup_batch_size: Sequence[int] | None = None,
        step_batch_size_schedule: str | None = None,
    ) -> None: ...

def build(
    input: Paths | RayDataset = (),
    *,
    tokenizer: TokenizerLike,
    index: IndexOptions | None = None,
    progress: Progress = False,
    output_prefix: str | os.PathLike[str],
    tokenizer_type: Literal['HuggingFaceTokenizer', 'SentencePieceTokenizer', 'GPTSentencePieceTokenizer', 'Llama2Tokenizer', 'TikTokenizer', 'GPT2BPETokenizer'] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    merge_file: str | os.PathLike[str] | None = None,
    tiktoken_encoding: str | None = None,
    tiktoken_pattern: Literal['v1', 'v2'] = 'v2',
    tiktoken_num_special_tokens: int = 1000,
    vocab_size: int | None = None,
    tokenizer_special_tokens: Sequence[str] = ('<unk>', '<s>', '</s>', '<mask>', '<pad>', '<cls>', '<sep>'),
    endpoint_url: str | None = None,
    region: str | None = None,
    executor: Literal['auto', 'local', 'processes', 'ray'] = 'auto',
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool = False,
    replace: bool = False,
    fresh: bool = False,
    input_list: Paths = (),
    input_split: str | None = None,
    input_config: str | None = None,
    input_format: Literal['auto', 'jsonl', 'lines', 'document', 'csv', 'tsv'] = 'auto',
    shard_size: int | str | None = None,
    no_provenance: bool = False,
    on_bad_record: Literal['fail', 'quarantine'] = 'fail',
    on_bad_input: Literal['fail', 'skip-file'] = 'fail',
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    eod_token: str | None = None,
    tokenizer_hf_no_include_special_tokens: bool = False,
    engine: Literal['auto', 'gigatoken', 'reference', 'tokenizers'] = 'auto',
    json_keys: Sequence[str] = ('text',),
    join: str | None = None,
    where: str | None = None,
    token_ids: str | None = None,
    append_eod: bool = False,
    empty_documents: Literal['keep', 'eod'] = 'keep',
    shuffle_documents: int | str | None = None,
    sample: float | str | None = None,
    leave_out: float | str | None = None,
    hold_out: float | str | None = None,
    hold_out_by: str | None = None,
    output_by: str | None = None,
    repeat: Sequence[str] | Mapping[str, float] = (),
) -> BuildResult:
    """Tokenize text and merge it into one dataset per key, as `dsindex build` does.

    Repeating an interrupted call continues it; repeating a finished one returns at once.

    Args:
        input: Files (JSONL, compressed or not, tables), patterns or folders, in the order of the output, also
            addresses in object stores; `-` is standard input. Or a `ray.data.Dataset`, which is written to a
            `datasink`, in its order.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`.
        index: Also build the index caches of every dataset.
        progress: True to show progress as the command line does, or a function to call with each Snapshot.
        tokenizer_type: Megatron's name of the kind of tokenizer, checked against the file.
        vocab_file: Vocab.json of a GPT2BPETokenizer.
        merge_file: Merges.txt of a GPT2BPETokenizer.
        tiktoken_encoding: Pattern and special tokens of a tiktoken file whose name does not say them: gpt2, r50k_base,
            p50k_base, p50k_edit, cl100k_base, o200k_base, o200k_harmony, llama3, llama3.1, llama4, qwen.
        tiktoken_pattern: Pattern of a TikTokenizer (default: v2).
        tiktoken_num_special_tokens: Special tokens of a TikTokenizer (default: 1000).
        vocab_size: Vocabulary of a TikTokenizer with its special tokens (default: 131072).
        tokenizer_special_tokens: The first special tokens of a TikTokenizer.
        endpoint_url: Server of s3:// addresses, such as MinIO's (default: AWS_ENDPOINT_URL, or Amazon's own).
        region: Region of s3:// addresses (default: AWS_REGION, or us-east-1).
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        output_prefix: Outputs are named P_KEY_document.*, here or in a bucket (s3://, gs://).
        work_dir: The folder of shards and ledger (default: PREFIX.build).
        keep_shards: Keep the work folder after success.
        replace: Replace a finished output of other inputs once the new one is complete; kept shards of unchanged inputs
            are used again.
        fresh: Start over; an old output is replaced once the new one is complete.
        input_list: Files that list inputs, one path per line, read after input; - reads a list from standard input.
        input_split: The split to take from a folder that has several, such as train; all takes every split.
        input_config: The configuration of a dataset on the Hugging Face Hub (default: its default one).
        input_format: What the inputs hold: JSON lines, plain text with a document per line or per file, or CSV; Parquet
            and Arrow, and compression, are told by content (default: auto, by the file's name).
        shard_size: Bytes of input per shard (default: by the size of the inputs, at most 64MiB).
        no_provenance: Do not record where documents came from.
        on_bad_record: Stop at the first bad record, or set bad records aside with file, line and reason (default:
            fail).
        on_bad_input: Stop at a compressed file or table that is damaged or cut off, or leave out such files as a whole,
            which reads all of them twice (default: fail).
        max_bad_records: Stop when more are set aside.
        max_record_size: Treat longer lines as bad records.
        eod_token: The EOD token (default: the tokenizer folder's eos_token).
        tokenizer_hf_no_include_special_tokens: Do not run the tokenizer's post-processor, which may add a BOS to every
            text.
        engine: The library that encodes; auto is gigatoken where it returns the same tokens, else the reference: the
            library of the tokenizer's own format (default: auto).
        json_keys: Keys whose texts are tokenized: names, paths (.meta.text) or jq patterns (NAME=.a + .b) (default:
            text).
        join: Join the texts of all keys to one; \\n, \\t and \\\\ are escapes.
        where: Leave out records for which this jq condition is not true.
        token_ids: Take lists of token ids from this name or path, instead of json_keys.
        append_eod: End every document with the EOD token.
        empty_documents: Store texts without tokens as empty documents, as Megatron's preprocess_data.py does, or as EOD
            alone, as its preprocess_data_fast.py does (default: keep).
        shuffle_documents: Put the documents of all inputs into a random order, which depends on this number alone.
        sample: Keep this share of the records (10% or 0.1), by their texts.
        leave_out: Leave out the records that sample SHARE keeps.
        hold_out: Write the records that sample SHARE keeps to P_valid_KEY_document, and the others to P_KEY_document.
        hold_out_by: With hold_out, choose by the string under this key, so that equal ones stay together.
        output_by: Make datasets P_VALUE_KEY_document of the records with each string VALUE under this key.
        repeat: Read these inputs several times or in part: 2.5 is twice, then a sample of one half.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """

def build_index(
    data_path: Blend | None = None,
    *,
    train_data_path: Blend | None = None,
    valid_data_path: Blend | None = None,
    test_data_path: Blend | None = None,
    document_order: str | os.PathLike[str] | OrderFunction = 'shuffled',
    progress: Progress = False,
    continue_from: str | None = None,
    consumed_samples: int | None = None,
    blend_schedule: str | None = None,
    max_epochs: float | Fraction | str | None = None,
    dataloader_type: str | None = None,
    data_cache_path: str | os.PathLike[str] | None = None,
    dataset_class: Literal['GPTDataset', 'GPTFIMDataset'] = 'GPTDataset',
    fim_data: bool = False,
    megatron_release: Literal['0.16', '0.17', '0.18', '0.19', 'main', 'nemo-automodel'] | None = None,
    job_tokenizer: Mapping[str, Any] | None = None,
    tokenizer_identifiers: str | os.PathLike[str] | None = None,
    like: str | os.PathLike[str] | None = None,
    dataset_path_as: Sequence[str] | None = None,
    plain_names: bool = False,
    layout: Literal['megatron', 'bigscience', 'maxtext'] = 'megatron',
    final_epoch_threshold: float = 0.8,
    split: str | None = None,
    seed: int | None = None,
    document_order_splits: Sequence[Literal['train', 'valid', 'test']] = ('train',),
    shuffle_epochs: Literal['together', 'separately', 'never'] | None = None,
    no_extra_token: bool = False,
    keep_partial_validation: bool = False,
    mid_level_dataset_surplus: float = 0.005,
    train_samples: int | None = None,
    train_iters: int | None = None,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    epochs: float | Fraction | str | None = None,
    num_samples: int | str | Sequence[int | None] | None = None,
    eval_interval: int | None = None,
    eval_iters: int = 100,
    full_validation: bool = False,
    skip_train: bool = False,
    start_eval_at_iter: int | None = None,
    eval_global_batch_size: int | None = None,
    phase_transition_iterations: Sequence[int] | str = (),
    rampup_batch_size: Sequence[int] | None = None,
    step_batch_size_schedule: str | None = None,
    executor: Literal['auto', 'local', 'processes', 'ray'] = 'auto',
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    data_args_path: str | os.PathLike[str] | None = None,
    per_split_data_args_path: str | os.PathLike[str] | None = None,
    multiple_validation_sets: bool = False,
    per_dataset_sequences_path: str | os.PathLike[str] | None = None,
    explain: bool = False,
    check: bool = False,
) -> IndexResult:
    """Build the index caches that a Megatron training job looks for, as `dsindex index` does.

    Args:
        data_path: A dataset, or a blend: `[0.3, "a", 0.7, "b"]` with weights, `["a", "b"]` in proportion to their
            lengths. Datasets are prefixes or results; a result with several datasets means all of them.
        train_data_path: The same for train only.
        valid_data_path: The same for valid only.
        test_data_path: The same for test only.
        document_order: "shuffled", Megatron's order; "packed", in which samples end where documents end, and hardly a
            document that fits a sample is cut; "length", the shortest first; a .npy or .parquet file with the numbers
            of the documents; or a function that returns them, for one epoch or for all, from a pyarrow table of one
            dataset's documents with the columns `document`, `length` in tokens, and `source`, `line` and `offset` if
            the dataset has provenance. A pair of numbers and of each document's times per epoch, 0 to leave it out,
            states repeats.
        progress: As for `build`.
        continue_from: The cache folder of a first job, or its description: samples before consumed_samples are that
            job's, and after them comes what is unread, by this job's weights, datasets and number of samples.
        consumed_samples: The samples that the first job has read, a multiple of global_batch_size: `consumed samples`
            in its log. Without continue_from, the samples before are placeholders, for the views of `dsindex rest`.
        blend_schedule: Weights from positions of the run on, in samples, tokens or shares of it, as in '0:90,10
            50%:50,50' or 'linear 0:90,10 200Btokens:50,50'; or a YAML file. Those of data_path only make the names.
        max_epochs: Refuse a run that reads a dataset more often (default: 1 with blend_schedule, otherwise any).
        dataloader_type: The job's; refused here if it is not single.
        data_cache_path: The job's cache folder (default: P/cache/GPTDataset_indices).
        dataset_class: The job's class of datasets: GPTFIMDataset with fim_data=True (default: GPTDataset).
        fim_data: The same as dataset_class GPTFIMDataset.
        megatron_release: The job's release of megatron-core, by which the flags of its tokenizer become part of the
            names.
        job_tokenizer: The flags of the job's tokenizer, such as {"tokenizer_type": "HuggingFaceTokenizer",
            "tokenizer_model": "gpt2"}.
        tokenizer_identifiers: The tokenizer's `unique_identifiers` in the job's Megatron, a JSON object.
        like: Take tokenizer, seed, sequence length and split from a description that the job wrote; flags override it.
        dataset_path_as: Each prefix as the job types it, in the same order, or HERE=THERE to replace the beginning of
            all.
        plain_names: Name caches after their datasets, for a reader of your own: no Megatron job finds them.
        layout: Megatron-core's caches, the files that BigScience's and OpenGPT-X's Megatron-DeepSpeed look for beside
            the data, or those of MaxText's mmap_npy (default: megatron).
        final_epoch_threshold: Shuffle the final epoch separately if less than this share of it is used: 0.80 in
            Megatron and BigScience, 0.95 in OpenGPT-X (default: 0.80).
        split: Shares of train, valid and test, spelled as in the job (default: '969, 30, 1').
        seed: The job's seed (default: 1234).
        document_order_splits: The splits with this order (default: train).
        shuffle_epochs: Shuffle the samples of all epochs together, as Megatron does, those of each epoch by themselves,
            or none (default: together; never for the orders `length` and FILE).
        no_extra_token: Samples of L tokens, not L + 1 (rare in Megatron).
        keep_partial_validation: Keep valid's last, partial sample.
        mid_level_dataset_surplus: The job's value, for weighted blends (default: 0.005).
        train_samples: The job's training samples.
        train_iters: The job's training iterations.
        global_batch_size: Samples per iteration.
        seq_length: The job's seq_length: tokens per sample.
        epochs: Train on E epochs, fractions allowed, and valid and test on one; the number of samples is in the
            description.
        num_samples: Samples of train, valid and test, as the job requests them; `none` or a missing number means one
            epoch.
        eval_interval: Iterations between validations.
        eval_iters: Iterations per validation (default: 100).
        full_validation: Each validation is one epoch of valid.
        skip_train: The job only validates, once, as with its skip_train=True.
        start_eval_at_iter: The job validates from this iteration on.
        eval_global_batch_size: Samples per iteration of a validation, from 0.18 on.
        phase_transition_iterations: The job's phases: each has caches of its own samples, and all are built.
        rampup_batch_size: Up to 0.17; later releases ignore it.
        step_batch_size_schedule: From 0.18 on; with what the job prints as `setting global batch size to` as
            global_batch_size.
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        data_args_path: A file with the words of data_path, as in the job.
        per_split_data_args_path: A JSON file with the words for each split, as in the job.
        multiple_validation_sets: The datasets of valid_data_path are no blend: each has the samples of valid, or all of
            its own.
        per_dataset_sequences_path: Write the file that the job reads with this flag, for a faster start; explain=True
            compares it.
        explain: Build nothing: show for each cache whether the job would find it, and if not, which settings differ.
        check: Build nothing: show what would be built, and its size.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked.
    """

def convert(
    source: Subject,
    destination: str | os.PathLike[str],
    *,
    progress: Progress = False,
    executor: Literal['auto', 'local', 'processes', 'ray'] = 'auto',
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    pbin_era: Literal['spec', '2024-01-30', '2024-04', 'current'] | None = None,
    flatten: bool = False,
    token_type: Literal['uint8', 'uint16', 'int32'] | None = None,
) -> ConvertResult:
    """Convert a dataset without loss, as `dsindex convert` does: MMIDIDX to `.pbin` or back, or between `.pbin`s.

    Args:
        source: A prefix, a `.pbin`, or a result with one dataset.
        destination: A `.pbin`, or a prefix; it must not exist.
        progress: As for `build`.
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        pbin_era: Version of the .pbin to write (default: current), or to read if DST is MMIDIDX.
        flatten: Join the sequences of each document.
        token_type: Token type of the MMIDIDX dataset to write (default: by the tokens' size).

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """

def datasink(
    *,
    tokenizer: TokenizerLike,
    index: IndexOptions | None = None,
    progress: Progress = False,
    output_prefix: str | os.PathLike[str],
    tokenizer_type: Literal['HuggingFaceTokenizer', 'SentencePieceTokenizer', 'GPTSentencePieceTokenizer', 'Llama2Tokenizer', 'TikTokenizer', 'GPT2BPETokenizer'] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    merge_file: str | os.PathLike[str] | None = None,
    tiktoken_encoding: str | None = None,
    tiktoken_pattern: Literal['v1', 'v2'] = 'v2',
    tiktoken_num_special_tokens: int = 1000,
    vocab_size: int | None = None,
    tokenizer_special_tokens: Sequence[str] = ('<unk>', '<s>', '</s>', '<mask>', '<pad>', '<cls>', '<sep>'),
    endpoint_url: str | None = None,
    region: str | None = None,
    executor: Literal['auto', 'local', 'processes', 'ray'] = 'auto',
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool = False,
    replace: bool = False,
    fresh: bool = False,
    no_provenance: bool = False,
    on_bad_record: Literal['fail', 'quarantine'] = 'fail',
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    eod_token: str | None = None,
    tokenizer_hf_no_include_special_tokens: bool = False,
    engine: Literal['auto', 'gigatoken', 'reference', 'tokenizers'] = 'auto',
    json_keys: Sequence[str] = ('text',),
    join: str | None = None,
    where: str | None = None,
    token_ids: str | None = None,
    append_eod: bool = False,
    empty_documents: Literal['keep', 'eod'] = 'keep',
    shuffle_documents: int | str | None = None,
    sample: float | str | None = None,
    leave_out: float | str | None = None,
    hold_out: float | str | None = None,
    hold_out_by: str | None = None,
    output_by: str | None = None,
) -> Any:
    """Return a `ray.data.Datasink` that builds a dataset of the rows, for `Dataset.write_datasink`.

    Keys are names of columns, of texts or, with `token_ids`, of lists of ids. Each block is tokenized on the node that
    has it; the documents are in the order of the rows, which Ray Data keeps if it is asked to (`preserve_order`). After
    the last block, shards are merged and published: a pipeline that fails leaves nothing under a final name, and one
    that is run again tokenizes only what is missing. Afterwards, the attribute `result` has what `build` returns. All
    nodes must have dsindex, and see the output's folder under the same path.

    Args:
        tokenizer: As for `build`, as are all others.
        index: As for `build`.
        progress: As for `build`; shown once all blocks are tokenized.
        tokenizer_type: Megatron's name of the kind of tokenizer, checked against the file.
        vocab_file: Vocab.json of a GPT2BPETokenizer.
        merge_file: Merges.txt of a GPT2BPETokenizer.
        tiktoken_encoding: Pattern and special tokens of a tiktoken file whose name does not say them: gpt2, r50k_base,
            p50k_base, p50k_edit, cl100k_base, o200k_base, o200k_harmony, llama3, llama3.1, llama4, qwen.
        tiktoken_pattern: Pattern of a TikTokenizer (default: v2).
        tiktoken_num_special_tokens: Special tokens of a TikTokenizer (default: 1000).
        vocab_size: Vocabulary of a TikTokenizer with its special tokens (default: 131072).
        tokenizer_special_tokens: The first special tokens of a TikTokenizer.
        endpoint_url: Server of s3:// addresses, such as MinIO's (default: AWS_ENDPOINT_URL, or Amazon's own).
        region: Region of s3:// addresses (default: AWS_REGION, or us-east-1).
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        output_prefix: Outputs are named P_KEY_document.*, here or in a bucket (s3://, gs://).
        work_dir: The folder of shards and ledger (default: PREFIX.build).
        keep_shards: Keep the work folder after success.
        replace: Replace a finished output of other inputs once the new one is complete; kept shards of unchanged inputs
            are used again.
        fresh: Start over; an old output is replaced once the new one is complete.
        no_provenance: Do not record where documents came from.
        on_bad_record: Stop at the first bad record, or set bad records aside with file, line and reason (default:
            fail).
        max_bad_records: Stop when more are set aside.
        max_record_size: Treat longer lines as bad records.
        eod_token: The EOD token (default: the tokenizer folder's eos_token).
        tokenizer_hf_no_include_special_tokens: Do not run the tokenizer's post-processor, which may add a BOS to every
            text.
        engine: The library that encodes; auto is gigatoken where it returns the same tokens, else the reference: the
            library of the tokenizer's own format (default: auto).
        json_keys: Keys whose texts are tokenized: names, paths (.meta.text) or jq patterns (NAME=.a + .b) (default:
            text).
        join: Join the texts of all keys to one; \\n, \\t and \\\\ are escapes.
        where: Leave out records for which this jq condition is not true.
        token_ids: Take lists of token ids from this name or path, instead of json_keys.
        append_eod: End every document with the EOD token.
        empty_documents: Store texts without tokens as empty documents, as Megatron's preprocess_data.py does, or as EOD
            alone, as its preprocess_data_fast.py does (default: keep).
        shuffle_documents: Put the documents of all inputs into a random order, which depends on this number alone.
        sample: Keep this share of the records (10% or 0.1), by their texts.
        leave_out: Leave out the records that sample SHARE keeps.
        hold_out: Write the records that sample SHARE keeps to P_valid_KEY_document, and the others to P_KEY_document.
        hold_out_by: With hold_out, choose by the string under this key, so that equal ones stay together.
        output_by: Make datasets P_VALUE_KEY_document of the records with each string VALUE under this key.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the tokenizer cannot be used. When rows are written, as `build`.
        MissingPackageError: If ray.data cannot be imported; it needs pandas.
    """

def estimate(
    input: Paths = (),
    *,
    tokenizer: TokenizerLike,
    index: IndexOptions | None = None,
    output_prefix: str | os.PathLike[str],
    tokenizer_type: Literal['HuggingFaceTokenizer', 'SentencePieceTokenizer', 'GPTSentencePieceTokenizer', 'Llama2Tokenizer', 'TikTokenizer', 'GPT2BPETokenizer'] | None = None,
    vocab_file: str | os.PathLike[str] | None = None,
    merge_file: str | os.PathLike[str] | None = None,
    tiktoken_encoding: str | None = None,
    tiktoken_pattern: Literal['v1', 'v2'] = 'v2',
    tiktoken_num_special_tokens: int = 1000,
    vocab_size: int | None = None,
    tokenizer_special_tokens: Sequence[str] = ('<unk>', '<s>', '</s>', '<mask>', '<pad>', '<cls>', '<sep>'),
    endpoint_url: str | None = None,
    region: str | None = None,
    executor: Literal['auto', 'local', 'processes', 'ray'] = 'auto',
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool = False,
    replace: bool = False,
    fresh: bool = False,
    input_list: Paths = (),
    input_split: str | None = None,
    input_config: str | None = None,
    input_format: Literal['auto', 'jsonl', 'lines', 'document', 'csv', 'tsv'] = 'auto',
    shard_size: int | str | None = None,
    no_provenance: bool = False,
    on_bad_record: Literal['fail', 'quarantine'] = 'fail',
    on_bad_input: Literal['fail', 'skip-file'] = 'fail',
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    eod_token: str | None = None,
    tokenizer_hf_no_include_special_tokens: bool = False,
    engine: Literal['auto', 'gigatoken', 'reference', 'tokenizers'] = 'auto',
    json_keys: Sequence[str] = ('text',),
    join: str | None = None,
    where: str | None = None,
    token_ids: str | None = None,
    append_eod: bool = False,
    empty_documents: Literal['keep', 'eod'] = 'keep',
    shuffle_documents: int | str | None = None,
    sample: float | str | None = None,
    leave_out: float | str | None = None,
    hold_out: float | str | None = None,
    hold_out_by: str | None = None,
    output_by: str | None = None,
    repeat: Sequence[str] | Mapping[str, float] = (),
) -> EstimateResult:
    """Estimate the output, time, memory and disk space of `build` with the same options, as `dsindex plan` does.

    Up to 64 MiB of the input are tokenized and timed. Nothing is written and no cluster is joined; for a cluster, set
    `workers` to its CPUs. Options that do not affect the estimate are validated and otherwise ignored.

    Args:
        input: As for `build`, as are all others.
        tokenizer: As for `build`.
        index: As for `build`.
        tokenizer_type: Megatron's name of the kind of tokenizer, checked against the file.
        vocab_file: Vocab.json of a GPT2BPETokenizer.
        merge_file: Merges.txt of a GPT2BPETokenizer.
        tiktoken_encoding: Pattern and special tokens of a tiktoken file whose name does not say them: gpt2, r50k_base,
            p50k_base, p50k_edit, cl100k_base, o200k_base, o200k_harmony, llama3, llama3.1, llama4, qwen.
        tiktoken_pattern: Pattern of a TikTokenizer (default: v2).
        tiktoken_num_special_tokens: Special tokens of a TikTokenizer (default: 1000).
        vocab_size: Vocabulary of a TikTokenizer with its special tokens (default: 131072).
        tokenizer_special_tokens: The first special tokens of a TikTokenizer.
        endpoint_url: Server of s3:// addresses, such as MinIO's (default: AWS_ENDPOINT_URL, or Amazon's own).
        region: Region of s3:// addresses (default: AWS_REGION, or us-east-1).
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        output_prefix: Outputs are named P_KEY_document.*, here or in a bucket (s3://, gs://).
        work_dir: The folder of shards and ledger (default: PREFIX.build).
        keep_shards: Keep the work folder after success.
        replace: Replace a finished output of other inputs once the new one is complete; kept shards of unchanged inputs
            are used again.
        fresh: Start over; an old output is replaced once the new one is complete.
        input_list: Files that list inputs, one path per line, read after input; - reads a list from standard input.
        input_split: The split to take from a folder that has several, such as train; all takes every split.
        input_config: The configuration of a dataset on the Hugging Face Hub (default: its default one).
        input_format: What the inputs hold: JSON lines, plain text with a document per line or per file, or CSV; Parquet
            and Arrow, and compression, are told by content (default: auto, by the file's name).
        shard_size: Bytes of input per shard (default: by the size of the inputs, at most 64MiB).
        no_provenance: Do not record where documents came from.
        on_bad_record: Stop at the first bad record, or set bad records aside with file, line and reason (default:
            fail).
        on_bad_input: Stop at a compressed file or table that is damaged or cut off, or leave out such files as a whole,
            which reads all of them twice (default: fail).
        max_bad_records: Stop when more are set aside.
        max_record_size: Treat longer lines as bad records.
        eod_token: The EOD token (default: the tokenizer folder's eos_token).
        tokenizer_hf_no_include_special_tokens: Do not run the tokenizer's post-processor, which may add a BOS to every
            text.
        engine: The library that encodes; auto is gigatoken where it returns the same tokens, else the reference: the
            library of the tokenizer's own format (default: auto).
        json_keys: Keys whose texts are tokenized: names, paths (.meta.text) or jq patterns (NAME=.a + .b) (default:
            text).
        join: Join the texts of all keys to one; \\n, \\t and \\\\ are escapes.
        where: Leave out records for which this jq condition is not true.
        token_ids: Take lists of token ids from this name or path, instead of json_keys.
        append_eod: End every document with the EOD token.
        empty_documents: Store texts without tokens as empty documents, as Megatron's preprocess_data.py does, or as EOD
            alone, as its preprocess_data_fast.py does (default: keep).
        shuffle_documents: Put the documents of all inputs into a random order, which depends on this number alone.
        sample: Keep this share of the records (10% or 0.1), by their texts.
        leave_out: Leave out the records that sample SHARE keeps.
        hold_out: Write the records that sample SHARE keeps to P_valid_KEY_document, and the others to P_KEY_document.
        hold_out_by: With hold_out, choose by the string under this key, so that equal ones stay together.
        output_by: Make datasets P_VALUE_KEY_document of the records with each string VALUE under this key.
        repeat: Read these inputs several times or in part: 2.5 is twice, then a sample of one half.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the inputs or the tokenizer cannot be used.
    """

def export(
    source: Subject,
    *,
    trainer: Literal['maxtext', 'nanotron', 'olmo'],
) -> ExportResult:
    """Prepare a dataset for another trainer, as `dsindex export` does, without copying its tokens.

    Args:
        source: A prefix, or a result with one dataset.
        trainer: The trainer that shall read the dataset.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the trainer cannot read the dataset, or another file is in the way.
    """

def inspect(
    path: Subject | IndexResult,
    *,
    tokenizer: TokenizerLike | None = None,
    data_path: Subjects | None = None,
    document: int | None = None,
    sequence: int | None = None,
    sample: int | None = None,
    find: str | None = None,
    limit: int | None = None,
    tokens: int | None = None,
    split: Literal['train', 'valid', 'test'] | None = None,
) -> InspectResult:
    """Look into a dataset, an index cache, an export or a work folder, as `dsindex inspect` does.

    Damage raises no exception: `findings` has it, in sentences, and `ok` is false.

    Args:
        path: A prefix, one of a dataset's files, a folder, or a result.
        tokenizer: Shows the text of tokens; that in the manifest if None.
        data_path: The datasets of an index cache, in the order of the blend, if they moved.
        document: One document, counted from 0.
        sequence: One sequence of .bin and .idx, counted from 0.
        sample: One training sample of an index cache.
        find: Where a text occurs, with and without a space before it.
        limit: Stop after this many occurrences (default: 10).
        tokens: Show at most this many tokens of each document.
        split: The split of an index cache.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If there is nothing that dsindex knows, or no such document, sequence or sample.
    """

def instruct(
    input: Paths | None = None,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | InstructionConfig,
    tokenizer: TokenizerLike | None = None,
    output_prefix: str | os.PathLike[str] | None = None,
    progress: Progress = False,
    endpoint_url: str | None = None,
    region: str | None = None,
    executor: Literal['auto', 'local', 'processes', 'ray'] | None = None,
    address: str | None = None,
    installed: bool | None = None,
    workers: int | None = None,
    shard_deadline: float | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool | None = None,
    replace: bool | None = None,
    fresh: bool | None = None,
    input_list: Paths | None = None,
    input_split: str | None = None,
    input_config: str | None = None,
    input_format: Literal['auto', 'jsonl', 'lines', 'document', 'csv', 'tsv'] | None = None,
    shard_size: int | str | None = None,
    no_provenance: bool | None = None,
    on_bad_record: Literal['fail', 'quarantine'] | None = None,
    on_bad_input: Literal['fail', 'skip-file'] | None = None,
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    engine: Literal['auto', 'gigatoken', 'reference', 'tokenizers'] | None = None,
    seq_length: int | None = None,
    pad_to_multiple: int | None = None,
    longer_than_pack: Literal['refuse', 'drop', 'truncate', 'split-turns'] | None = None,
    split: str | Sequence[float] | None = None,
    split_seed: int | None = None,
    export: ExportKind | Sequence[ExportKind] | None = None,
) -> InstructResult:
    """Turn conversations into tokens, loss masks and packed blocks, as `dsindex instruct` does.

    An option that is None is taken from the section `job` of `config`, or else is the command line's default.

    Args:
        input: Files (JSONL, compressed or not, tables), patterns or folders, in the order of the output, also
            addresses in object stores; `-` is standard input.
        config: How records become prompts and which parts are trainable: a YAML file, or a dict of the same content.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`, which has no chat
            template.
        output_prefix: Outputs are named `PREFIX_text_document.*`, `PREFIX_loss_mask.*`, and so on.
        progress: As for `build`.
        endpoint_url: Server of s3:// addresses, such as MinIO's (default: AWS_ENDPOINT_URL, or Amazon's own).
        region: Region of s3:// addresses (default: AWS_REGION, or us-east-1).
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        work_dir: The folder of shards and ledger (default: PREFIX.build).
        keep_shards: Keep the work folder after success.
        replace: Replace a finished output of other inputs once the new one is complete; kept shards of unchanged inputs
            are used again.
        fresh: Start over; an old output is replaced once the new one is complete.
        input_list: Files that list inputs, one path per line, read after input; - reads a list from standard input.
        input_split: The split to take from a folder that has several, such as train; all takes every split.
        input_config: The configuration of a dataset on the Hugging Face Hub (default: its default one).
        input_format: What the inputs hold: JSON lines, plain text with a document per line or per file, or CSV; Parquet
            and Arrow, and compression, are told by content (default: auto, by the file's name).
        shard_size: Bytes of input per shard (default: by the size of the inputs, at most 8MiB).
        no_provenance: Do not record where documents came from.
        on_bad_record: Stop at the first bad record, or set bad records aside with file, line and reason (default:
            fail).
        on_bad_input: Stop at a compressed file or table that is damaged or cut off, or leave out such files as a whole,
            which reads all of them twice (default: fail).
        max_bad_records: Stop when more are set aside.
        max_record_size: Treat longer lines as bad records.
        engine: The library that encodes; auto is gigatoken where it returns the same tokens and masks, else the
            reference (default: auto).
        seq_length: Pack conversations into blocks of L tokens; also sets max_length if CONFIG does not.
        pad_to_multiple: Pad each conversation in a pack to a multiple of N tokens, as context parallelism needs it:
            twice its ranks, times the tensor-parallel ranks with sequence parallelism (default: 1).
        longer_than_pack: A conversation of more than L tokens: refuse makes a bad record, drop leaves it out of the
            packs, truncate cuts it, split-turns makes several sequences; all are counted (default: `too_long` of
            CONFIG).
        split: Shares of train, valid and test, by a hash of each conversation's content.
        split_seed: Seed of the split (default: 1234).
        export: Also write a folder for other trainers: hf (Parquet with labels), hf-disk (the same, saved by datasets),
            bridge (packed Parquet of Megatron-Bridge and NeMo), sft (JSON lines for Megatron's --sft), sft-packed (the
            same with a pack in each line, also for NeMo-RL).

    Raises:
        OptionsError: If the options are invalid.
        InputError: If `config` cannot be read or is not a valid configuration.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """

def merge(
    input: Subjects,
    *,
    progress: Progress = False,
    output_prefix: str | os.PathLike[str],
    endpoint_url: str | None = None,
    region: str | None = None,
    executor: Literal['auto', 'local', 'processes', 'ray'] = 'auto',
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool = False,
    replace: bool = False,
    fresh: bool = False,
) -> MergeResult:
    """Merge MMIDIDX datasets into one, as `dsindex merge` does.

    Args:
        input: The datasets in the order of the output: prefixes, or results. A result means all its datasets.
        progress: As for `build`.
        endpoint_url: Server of s3:// addresses, such as MinIO's (default: AWS_ENDPOINT_URL, or Amazon's own).
        region: Region of s3:// addresses (default: AWS_REGION, or us-east-1).
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        output_prefix: Writes P.bin and P.idx, here or in a bucket (s3://, gs://).
        work_dir: The folder of shards and ledger (default: PREFIX.build).
        keep_shards: Keep the work folder after success.
        replace: Replace a finished output of other inputs once the new one is complete; kept shards of unchanged inputs
            are used again.
        fresh: Start over; an old output is replaced once the new one is complete.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """

def mix(
    source: Mapping[Subject, str | None] | Subjects = (),
    *,
    data_path: Blend | None = None,
    valid_data_path: Blend | None = None,
    test_data_path: Blend | None = None,
    train_samples: int | None = None,
    train_iters: int | None = None,
    global_batch_size: int | None = None,
    tokens: int | str | None = None,
    seq_length: int = 4096,
    split: str | None = None,
    per_split_data_args_path: str | os.PathLike[str] | None = None,
    write: str | None = None,
    seed: int | None = None,
    megatron_release: Literal['0.16', '0.17', '0.18', '0.19', 'main', 'nemo-automodel'] | None = None,
    eval_interval: int | None = None,
    eval_iters: int | None = None,
    job_tokenizer: Mapping[str, Any] | None = None,
    check: bool = False,
    data_cache_path: str | os.PathLike[str] | None = None,
) -> MixResult:
    """Plan a mixture from the tokens that datasets really have, as `dsindex mix` does.

    Args:
        source: Datasets with how much of each: `{"web": "60%", "books": "2epochs", "code": "10B", "rest": None}`, where
            None is the rest. Datasets are prefixes or results; without amounts, a list of them.
        data_path: A blend with weights, as for `build_index`, to be explained instead.
        valid_data_path: Datasets of valid in the file `per_split_data_args_path`, as `data_path`.
        test_data_path: Datasets of test in that file.
        train_samples: The job's training samples.
        train_iters: The job's training iterations.
        global_batch_size: Samples per iteration.
        tokens: Tokens to draw, such as 300B.
        seq_length: Tokens per sample (default: 4096).
        split: Shares of train, valid and test in every dataset (default: '969, 30, 1').
        per_split_data_args_path: Write the mixture as this file of Megatron's, with which train draws from the whole of
            its datasets.
        write: Write a delivery: this file ties datasets, digests, weights, splits, tokenizer, job and caches together
            for dsindex index, verify, report and trace.
        seed: The job's seed.
        megatron_release: The job's release of megatron-core, with the flags of its tokenizer.
        eval_interval: The job's iterations between validations.
        eval_iters: The job's iterations per validation.
        job_tokenizer: The flags of the job's tokenizer, by name.
        check: Compare with what the blends in the cache folder draw; exit code 1 if it differs by more than rounding.
        data_cache_path: The job's cache folder.

    Returns:
        The mixture; its `data_path` goes to `build_index` or Megatron as it is, `ok` tells whether the caches agree.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If a dataset is missing or has no tokens, or Megatron would refuse the blend.
    """

def open(
    path: Subject | IndexResult,
    *,
    block_size: int | None = None,
    sequence_length: int | None = None,
    pad_id: int | None = None,
    pad_to_multiple: int | None = None,
    split: str | None = None,
    prefix: Subjects | None = None,
    options: SampleOptions | None = None,
    tokenizer: TokenizerLike | None = None,
    check: bool = True,
    torch: bool = False,
    endpoint_url: str | None = None,
    region: str | None = None,
) -> Dataset:
    """Open a dataset; its format is detected from the files.

    A `.bin`/`.idx` pair opens as an IndexedDataset, a `.pbin` as its documents or blocks, a JSONL file with a raw index
    as its lines, instruction data as packed blocks, and an index cache as a GPTDataset or BlendedDataset.

    Args:
        path: A prefix or one of a dataset's files, here or in an object store; the folder of an index cache, or a
            result.
        block_size: For a `.pbin`: return blocks of this many tokens instead of documents.
        sequence_length: For instruction data: tokens per block; may be None if only one block layout is stored.
        pad_id: For instruction data: token that fills up blocks; 0 if None. Loss is masked on padding.
        pad_to_multiple: For instruction data: each conversation takes a multiple of so many tokens of its block.
        split: For index caches or instruction data: train, valid or test, if there are several; train if None.
        prefix: For an index cache: the dataset, if its path differs from the description's; a list for a blend.
        options: For an index cache: how masks and positions of samples are made.
        tokenizer: For a JSONL file: tokenizes lines, which are bytes otherwise.
        check: Check every entry of an MMIDIDX index; without it, even a very large dataset opens at once.
        torch: Return tensors instead of arrays.
        endpoint_url: Server of an `s3://` address; `AWS_ENDPOINT_URL` or Amazon's own if None.
        region: Region of an `s3://` address; `AWS_REGION` or us-east-1 if None.

    Raises:
        OptionsError: If `path` is neither a path nor a result, or is a result with several datasets.
        InputError: If there is no dataset, or this kind of dataset does not take an option.
        FormatError: If a file is damaged or in none of these formats.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

def pack(
    input: Paths = (),
    *,
    tokenizer: TokenizerLike,
    progress: Progress = False,
    output: str | os.PathLike[str],
    endpoint_url: str | None = None,
    region: str | None = None,
    executor: Literal['auto', 'local', 'processes', 'ray'] = 'auto',
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool = False,
    replace: bool = False,
    fresh: bool = False,
    input_list: Paths = (),
    input_split: str | None = None,
    input_config: str | None = None,
    input_format: Literal['auto', 'jsonl', 'lines', 'document', 'csv', 'tsv'] = 'auto',
    shard_size: int | str | None = None,
    no_provenance: bool = False,
    on_bad_record: Literal['fail', 'quarantine'] = 'fail',
    on_bad_input: Literal['fail', 'skip-file'] = 'fail',
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    eod_token: str | None = None,
    tokenizer_hf_no_include_special_tokens: bool = False,
    engine: Literal['auto', 'gigatoken', 'reference', 'tokenizers'] = 'auto',
    jq_pattern: str = '.text',
    pbin_era: Literal['spec', '2024-01-30', '2024-04', 'current'] = 'current',
) -> PackResult:
    """Tokenize text into packed data for Modalities, as `dsindex pack` does.

    Args:
        input: Files (JSONL, compressed or not, tables), patterns or folders, in the order of the output, also
            addresses in object stores; `-` is standard input.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`.
        progress: As for `build`.
        endpoint_url: Server of s3:// addresses, such as MinIO's (default: AWS_ENDPOINT_URL, or Amazon's own).
        region: Region of s3:// addresses (default: AWS_REGION, or us-east-1).
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        work_dir: The folder of shards and ledger (default: PREFIX.build).
        keep_shards: Keep the work folder after success.
        replace: Replace a finished output of other inputs once the new one is complete; kept shards of unchanged inputs
            are used again.
        fresh: Start over; an old output is replaced once the new one is complete.
        input_list: Files that list inputs, one path per line, read after input; - reads a list from standard input.
        input_split: The split to take from a folder that has several, such as train; all takes every split.
        input_config: The configuration of a dataset on the Hugging Face Hub (default: its default one).
        input_format: What the inputs hold: JSON lines, plain text with a document per line or per file, or CSV; Parquet
            and Arrow, and compression, are told by content (default: auto, by the file's name).
        shard_size: Bytes of input per shard (default: by the size of the inputs, at most 64MiB).
        no_provenance: Do not record where documents came from.
        on_bad_record: Stop at the first bad record, or set bad records aside with file, line and reason (default:
            fail).
        on_bad_input: Stop at a compressed file or table that is damaged or cut off, or leave out such files as a whole,
            which reads all of them twice (default: fail).
        max_bad_records: Stop when more are set aside.
        max_record_size: Treat longer lines as bad records.
        eod_token: The EOD token (default: the tokenizer folder's eos_token).
        tokenizer_hf_no_include_special_tokens: Do not run the tokenizer's post-processor, which may add a BOS to every
            text.
        engine: The library that encodes; auto is gigatoken where it returns the same tokens, else the reference: the
            library of the tokenizer's own format (default: auto).
        output: The packed data, here or in a bucket (s3://, gs://).
        jq_pattern: Selects the text of a record (default: .text); anything but a single key is slower, as it runs jq.
        pbin_era: Version of the .pbin to write (default: current).

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """

def report(
    prefix: Subjects,
    *,
    tokenizer: TokenizerLike | None = None,
    cache: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | IndexResult | None = None,
    progress: Progress = False,
    output: str | os.PathLike[str],
) -> ReportResult:
    """Write one HTML page about datasets, as `dsindex report` does.

    Damage raises no exception: it is on the page, and `ok` is false. A file is replaced only if it is an unchanged
    report.

    Args:
        prefix: Datasets: prefixes, `.pbin` files or results. A result means all its datasets.
        tokenizer: The tokenizer of all datasets; that in each manifest if None.
        cache: Index caches of the datasets: their folders, or the result of `build_index`.
        progress: As for `build`.
        output: The page to write, such as report.html.

    Raises:
        OptionsError: If the options are invalid.
        MissingPackageError: If vl-convert-python is not installed.
        InputError: If there is no such dataset, or no cache of these datasets.
        OutputError: If `output` is someone else's file, or cannot be written.
    """

def rest(
    cache: str | os.PathLike[str] | IndexResult,
    *,
    consumed_samples: int,
    output_prefix: str,
    global_batch_size: int | None = None,
    data_path: Sequence[str] | None = None,
    dataloader_type: str | None = None,
) -> RestResult:
    """Write views of what a job has not read, to go on with another sequence length, as `dsindex rest` does.

    Args:
        cache: The job's cache folder, the description of its train split, or the result of `build_index`.
        consumed_samples: The samples that the job has read: `consumed samples` in its log.
        output_prefix: Writes R.idx, R.bin, a link, and R.view.json; in a blend R_NAME for each dataset.
        global_batch_size: The job's, of which N has to be a multiple.
        data_path: The datasets, in the order of the blend, if they moved.
        dataloader_type: The job's: only of `single` is it known what is unread.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the caches are damaged, or do not fit their datasets.
    """

def trace(
    cache: str | os.PathLike[str] | IndexResult,
    *,
    tokenizer: TokenizerLike | None = None,
    prefix: Subjects | None = None,
    split: str | None = None,
    sample: int | Sequence[int] | None = None,
    step: int | str | None = None,
    document: int | str | None = None,
    line: str | None = None,
    consumed: int | None = None,
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    data_parallel_size: int | None = None,
    data_parallel_rank: int | None = None,
    text_tokens: int = 32,
    fields: Sequence[str] = (),
) -> TraceResult:
    """Trace samples and steps to documents and lines, or lines to samples and steps, as `dsindex trace` does.

    Args:
        cache: The folder of index caches, the description of one, packs, a delivery, or the result of `build_index`.
        tokenizer: Shows the text of tokens; that in each manifest if None.
        prefix: The datasets, in the order of the blend, if they moved.
        split: Train, valid or test (default: train).
        sample: Samples, by number.
        step: All samples of a step, or of steps such as 10-19; needs global_batch_size.
        document: A document; in a blend with its dataset's prefix.
        line: A line of an input.
        consumed: Tokens by how often the first N samples read them, for each dataset.
        global_batch_size: Samples in a step.
        micro_batch_size: Samples that a rank reads at once.
        data_parallel_size: Number of data-parallel ranks.
        data_parallel_rank: Only the samples of this rank.
        text_tokens: Show the text of the first N tokens of each part (default: 32).
        fields: Show fields of the records that documents were made from, such as .meta.path.

    Returns:
        TracedSamples for `sample` and `step`, TracedDocuments for `document` and `line`, ConsumedTokens for `consumed`.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If there is no such sample, document or line.
        FormatError: If the cache, a manifest or provenance is damaged.
    """

def verify(
    prefix: Subjects,
    *,
    cache: str | os.PathLike[str] | IndexResult | None = None,
    tokenizer: TokenizerLike | None = None,
    progress: Progress = False,
    executor: Literal['auto', 'local', 'processes', 'ray'] = 'auto',
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    engine: Literal['auto', 'gigatoken', 'reference', 'tokenizers'] = 'auto',
    against_source: bool = False,
    sample: float | str = 1.0,
    data_folder: Sequence[str] = (),
) -> VerifyResult:
    """Prove that datasets are intact, as `dsindex verify` does.

    Damage raises no exception: the result is true if there are no findings, and lists them otherwise.

    Args:
        prefix: Datasets: prefixes, `.pbin` files or results. A result means all its datasets.
        cache: Index caches to check against the data: their folder, or the result of `build_index`.
        tokenizer: The tokenizer of the dataset; read from the path in the manifest if None.
        progress: As for `build`.
        executor: Auto is Ray if address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of
            this process, or processes where threads would wait for each other (default: auto).
        address: The Ray cluster to join: HOST:6379, or auto for this machine's.
        installed: Dsindex is installed on the cluster's nodes: do not send them this node's code.
        workers: Tasks that run at once (default: all CPUs).
        shard_deadline: Start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least
            60).
        engine: The library that tokenizes again; tokenizers, the reference, is slow (default: auto).
        against_source: Tokenize the inputs again and compare.
        sample: Compare only a share of the documents, such as 1% or 0.01.
        data_folder: Where the datasets and caches of a delivery are, if not where it says or beside it.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If the checks for `against_source` or `cache` cannot be made.
        TokenizerError: If the tokenizer is not the one that the dataset was made with.
    """
