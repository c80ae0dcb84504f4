"""The plan command: reports what a pipeline will take, without writing anything or downloading weights."""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import PreTrainedModel

from longmlm.artifacts.provenance import ModelSource
from longmlm.artifacts.rows import RowsManifest, check_rows_fit_positions, read_rows_manifest
from longmlm.data.corpus import Document, document_of, plan_slices
from longmlm.data.disk import REMEDY, Sizes, result_bytes, shortage
from longmlm.data.encoding import tokenized
from longmlm.data.engine import check_splits
from longmlm.data.files import left_out
from longmlm.data.notes import markup_note, rows_notes, sampled_texts, unknown_notes, unread_notes
from longmlm.data.packing import TokenizedDocument, pack
from longmlm.data.row import LooseRows
from longmlm.data.vocabulary import Vocabulary, load_vocabulary, vocabulary_of_pretrained
from longmlm.errors import ConfigError, DataError, counted
from longmlm.evaluation.frozen import FrozenRows, check_predicts, whole
from longmlm.evaluation.measure import measure
from longmlm.folders import GB, free_bytes
from longmlm.hubs.datasets import is_local
from longmlm.hubs.models import snapshot_of
from longmlm.model.architecture import architecture_of, dropout_of, set_dropout
from longmlm.model.cost import GPUS, Cost, Work, cost_of, document_length, gpu_of
from longmlm.model.facts import facts_of
from longmlm.model.families import attention_note, check_num_positions
from longmlm.model.loading import load_model, load_tokenizer, meta_model
from longmlm.model.mlm import MlmObjective
from longmlm.model.position_table import position_table_of, replace_positions
from longmlm.model.terms import read_terms
from longmlm.model.window import Window
from longmlm.model.window_attention import use_window
from longmlm.needs import machine_errors
from longmlm.pipeline_needs import training_processes
from longmlm.planning.estimate import Machine, TrainingPlan, distillation_time, duration, prepare_time, training_plan
from longmlm.planning.size import CorpusSize, RowsSize, corpus_size, estimated_rows, rows_size, sampled_rows
from longmlm.planning.speed import ASSUMED_MFU, cpu_tokens_per_second, gpu_tokens_per_second
from longmlm.runtime.launch import free_memory_bytes, resolved_precision
from longmlm.settings.masking import HeldOut
from longmlm.settings.pipeline import PlanConfig
from longmlm.settings.results import result_of
from longmlm.training.run_folder import model_or_best_checkpoint

MAX_EPOCHS = 40  # beyond which repeated text hardly lowers the loss: Muennighoff et al. 2023, arXiv:2305.16264
TOKENS_OF_SAMPLE = 4096  # of which 15 % are masked: enough to tell a trained head from another one


def plan(config: PlanConfig) -> None:
    """Prints what the pipeline will take; each line is marked exact or estimate."""
    recipe, runtime = config.pretrain.recipe, config.pretrain.runtime
    base_positions, model = planned_model(config)
    vocabulary = planned_vocabulary(config)
    corpus, rows = planned_rows(config, vocabulary)
    check_terms(config)
    check_base(config)
    precision = recipe.precision
    if config.gpu and precision == "auto":
        precision = "bf16" if (gpu := gpu_of(config.gpu)) is None or gpu.has_bf16 else "no"
    row_length = config.prepare.recipe.row_length
    work = Work(
        row_length=row_length,
        selected_fraction=recipe.masking.selected_fraction,
        is_half=resolved_precision(precision) != "no",
        is_checkpointed=runtime.activation_checkpointing,
        has_gpu=bool(config.gpu) or torch.cuda.is_available(),
        document_length=document_length(rows.document_lengths, row_length) if recipe.isolate_documents else None,
    )
    cost = cost_of(model, work)
    machine = planned_machine(config, model, cost, work)
    training = training_plan(rows, cost, work, machine, recipe, runtime)
    times = distillation_time(config, model, machine, work.has_gpu), prepare_time(config, corpus, rows, vocabulary)
    kind = "exact" if rows.is_exact else "estimate"
    for name, known, text in (
        ("corpus", "exact", _corpus(corpus, config)),
        ("rows", kind, _rows(rows, work)),
        ("model", "exact", _model(model, base_positions, work)),
        ("steps", kind, _steps(training, machine, config)),
        *([("sources", kind, _sources(training))] if len(training.seen) > 1 else []),
        ("memory", "estimate", _memory(training, cost, machine)),
        ("disk", "estimate", _disk(config, Sizes(model.num_parameters(), model.config.vocab_size, rows.num_tokens))),
        ("time", "estimate", _time(training, machine, *times)),
    ):
        print(f"{name:8}{known:10}{text}")
    extend = None if recipe.pairs else config.extend  # a model with a window cannot learn pairs
    if extend and (note := attention_note(extend.recipe, base_positions, model.config)):
        print(note)
    for note in [*planned_notes(config, vocabulary), *machine_notes(config), *unread_notes(config)]:
        print(note)


def _corpus(corpus: CorpusSize, config: PlanConfig) -> str:
    own = left_out([name for source in config.prepare.recipe.sources for name in source.files])
    missing = f"; not counted: {', '.join(corpus.not_counted)}" if corpus.not_counted else ""
    return f"{counted(corpus.num_files, 'file')}, {corpus.num_bytes / 1e6:,.1f} MB{missing}{own and '; '}{own}"


def _rows(rows: RowsSize, work: Work) -> str:
    counts = f"{counted(rows.train_rows, 'row')} of {work.row_length} tokens, {rows.mean_fill:.1%} full"
    return f"{rows.num_tokens / 1e6:,.2f} M tokens; {counts}; {rows.held_out_rows:,} held out"


def _model(model: PreTrainedModel, base_positions: int, work: Work) -> str:
    extended = f" extended to {work.row_length}" if work.row_length > base_positions else ""
    size = f"{model.num_parameters() / 1e6:.1f} M parameters"
    return f"{model.config.model_type}, {size}, {base_positions} positions{extended}"


def _steps(training: TrainingPlan, machine: Machine, config: PlanConfig) -> str:
    rows, processes = counted(training.rows_per_step, "row"), counted(machine.num_processes, "process")
    if training_processes(config).num_processes is None:
        processes += " (assumed, since launch does not say how many)"
    steps = f"{config.pretrain.recipe.num_steps:,} of {rows} ({training.tokens_per_step:,} tokens) in {processes}"
    advice = "; so many repetitions gain little: add text or lower num_steps" if training.epochs > MAX_EPOCHS else ""
    return f"{steps}: {training.num_tokens / 1e6:,.2f} M tokens, {training.epochs:.2f} epochs{advice}"


def _sources(training: TrainingPlan) -> str:
    """Returns how often each source is seen, and its share of the tokens."""
    seen = (f"{name} {times:.2f} times, {share:.1%} of the tokens" for name, (times, share) in training.seen.items())
    often = " and ".join(name for name, (times, _) in training.seen.items() if times > MAX_EPOCHS)
    return "; ".join([*seen, *([f"so many repetitions of {often} gain little: lower the weight"] if often else [])])


def _memory(training: TrainingPlan, cost: Cost, machine: Machine) -> str:
    need, free = f"{training.memory_bytes / GB:.1f} GB per process", f"{machine.memory_bytes / GB:.1f} GB"
    if not training.rows_per_micro_batch:
        return f"not even one row fits: {need}, {free} are free; set activation_checkpointing = true or lower length"
    state = f"{cost.state_bytes / GB:.1f} GB weights, gradients, moments"
    return f"{need} ({state}) with micro-batches of {counted(training.rows_per_micro_batch, 'row')}; {free} are free"


def _disk(config: PlanConfig, sizes: Sizes) -> str:
    found, free = result_bytes(config, sizes), free_bytes(Path(config.output))
    parts = f"rows {found['prepare'] / GB:.2f}, long model {found['extend'] / GB:.2f}"
    parts += f", checkpoints {found['pretrain'] / GB:.2f}, release {found['release'] / GB:.2f}"
    text = f"{sum(found.values()) / GB:.2f} GB: {parts}; {free / GB:.1f} GB are free"
    missing = [name for name, stage in config.stages.items() if not result_of(stage).exists()]
    problem = shortage(config, [*missing, "pretrain"], sizes)
    return f"{text}; {problem}: {REMEDY}" if problem else text


def _time(training: TrainingPlan, machine: Machine, *others: str) -> str:
    about = f"{machine.tokens_per_second:,.0f} tokens/s on {machine.name}, {machine.speed_source}"
    return (
        f"training {duration(3600 * training.hours)} with its evaluations ({about}); {'; '.join(filter(None, others))}"
    )


def check_terms(config: PlanConfig) -> None:
    """Raises ModelError if every term in the file `add_tokens` already is a token of the model."""
    extend = config.extend
    if extend and extend.recipe.add_tokens is not None and not result_of(extend).exists():
        folder = snapshot_of(extend.base, extend.revision, with_weights=False).folder
        source = ModelSource(name=extend.base)
        read_terms(extend.recipe.add_tokens, load_tokenizer(extend.base, folder).tokenizer, source)


def check_base(config: PlanConfig) -> None:
    """Raises ModelError if the model to extend predicts nothing in rows of a sample of the corpus.

    Does nothing where its weights or the corpus are not on this machine: pretrain measures the model then.
    """
    extend, recipe = config.extend, config.prepare.recipe
    sources = [source for source in recipe.sources if not source.dataset or is_local(source)]
    if extend is None or not sources or not facts_of(extend.base, extend.revision).weight_files:
        return
    loaded = load_model(extend.base, extend.revision)
    vocabulary = vocabulary_of_pretrained(loaded.tokenizer, extend.base)
    length = min(architecture_of(loaded.model).num_positions, recipe.row_length)
    documents = (
        document
        for number, source in enumerate(sources)
        for text in sampled_texts(source)
        if isinstance(document := document_of(text, source.name_of(""), number), Document)
    )
    texts = tokenized(vocabulary, [source.language for source in sources], documents)
    sentences = (TokenizedDocument(tokens, 0) for _, tokens in texts)
    rows = [*pack(sentences, length, vocabulary.special, recipe.packing, vocabulary.is_within_character)]
    rows = rows[:: max(1, len(rows) * length // TOKENS_OF_SAMPLE)]
    if rows:
        frozen = FrozenRows(LooseRows(tuple(rows)), HeldOut(), vocabulary.maskable, vocabulary.special)
        measured = measure(MlmObjective(loaded.model), frozen, whole, length, accelerator=None)
        check_predicts(measured.whole, frozen, whole, extend.base)


def planned_rows(config: PlanConfig, vocabulary: Vocabulary | None) -> tuple[CorpusSize, RowsSize]:
    """Returns the size of the corpus and of its rows, which is exact if the rows exist.

    Raises DataError for rows of another length, for a corpus that is on a hub only, and for one that prepare refuses.
    """
    recipe, folder = config.prepare.recipe, Path(config.pretrain.rows)
    corpus = corpus_size(recipe.sources)
    if not (folder / RowsManifest.FILE).is_file():
        if not corpus.not_counted:
            check_splits(recipe, slices := plan_slices(recipe.sources, recipe.slice_bytes))
            corpus = corpus.in_slices(slices, recipe.sources)
            if vocabulary and all(is_local(source) for source in recipe.sources if source.dataset):
                return corpus, sampled_rows(recipe, slices, vocabulary)
        elif not corpus.num_tokens:
            raise DataError(f"the size of {', '.join(corpus.not_counted)} is not known yet: run longmlm prepare first")
        return corpus, estimated_rows(corpus.tokens_per_source, recipe)
    manifest = read_rows_manifest(folder)
    if manifest.plan.row_length != recipe.row_length:
        raise DataError(
            f"{folder} holds rows of {manifest.plan.row_length} tokens, but the pipeline has rows of "
            f"{recipe.row_length}: remove it or name another output"
        )
    return corpus, rows_size(manifest)


def planned_vocabulary(config: PlanConfig) -> Vocabulary | None:
    """Returns the vocabulary of the rows; None if the tokenizer is one that extend is still to make."""
    tokenizer, extend = config.prepare.recipe.tokenizer, config.extend
    is_to_make = extend is not None and extend.output == tokenizer and not Path(tokenizer).exists()
    return None if is_to_make else load_vocabulary(tokenizer)


def planned_notes(config: PlanConfig, vocabulary: Vocabulary | None) -> list[str]:
    """Returns notes on the corpus; without a vocabulary, none on unknown tokens."""
    recipe, rows = config.prepare.recipe, Path(config.pretrain.rows)
    manifest = read_rows_manifest(rows) if (rows / RowsManifest.FILE).is_file() else None
    notes = [markup_note(recipe.sources), *(rows_notes(manifest) if manifest else ())]
    if vocabulary:
        notes += unknown_notes(recipe.sources, vocabulary, manifest.report.unknown_shares if manifest else None)
    return [note for note in notes if note]


def machine_notes(config: PlanConfig) -> list[str]:
    """Returns a line for each thing that this machine cannot do, or not check, and that the pipeline needs."""
    notes, recipe = (
        [f"longmlm run would stop on this machine: {error}" for error in machine_errors(config)],
        config.release.recipe,
    )
    if "release" in config.stages and recipe.sentence_transformer and not find_spec("sentence_transformers"):
        notes.append(
            f"recipe.sentence_transformer = {recipe.sentence_transformer}: sentence-transformers is not installed, so "
            "the release is written without running the code for it on its card: pip install "
            "'longmlm[sentence-transformers]'"
        )
    return notes


def planned_model(config: PlanConfig) -> tuple[int, PreTrainedModel]:
    """Returns the usable positions of the base model, and the model to train, on the meta device.

    Raises PositionsError when the base model cannot be extended to that length, or reads less without an extension.
    """
    start, dropout = config.pretrain.start, config.pretrain.recipe.dropout
    if config.extend is None:
        checkpoint = model_or_best_checkpoint(start.checkpoint) if start.checkpoint else None
        model = meta_model(checkpoint, start.revision, start.architecture)
        base_positions = num_positions = architecture_of(model).num_positions
    else:
        model = meta_model(config.extend.base, config.extend.revision)
        base_positions = architecture_of(model).num_positions
        num_positions = config.extend.recipe.num_positions or base_positions
        if not config.extend.recipe.keeps_positions(base_positions):
            check_num_positions(base_positions, num_positions)
        if config.extend.recipe.mode == "materialized" and num_positions > base_positions:
            width = position_table_of(model, config.extend.base).rows.embedding_dim
            replace_positions(model, torch.empty(num_positions, width, device="meta"))
        use_window(model, Window.of(config.extend.recipe))
    check_rows_fit_positions(config.prepare.recipe.row_length, num_positions, config.pretrain.start.name)
    if dropout is not None:
        set_dropout(model, dropout)
    return base_positions, model


def planned_machine(config: PlanConfig, model: PreTrainedModel, cost: Cost, work: Work) -> Machine:
    """Returns the GPU to plan for, or this machine; raises ConfigError for an unknown GPU, or one in fp32."""
    started = training_processes(config)
    num_processes = started.num_processes or 1
    if not work.has_gpu:
        speed = cpu_tokens_per_second(model, work, dropout_of(model))
        name = f"this CPU, {counted(torch.get_num_threads(), 'thread')}"
        memory_bytes = free_memory_bytes() // started.per_machine
        return Machine(name, memory_bytes, num_processes, speed, "measured now")
    name = config.gpu or torch.cuda.get_device_name()
    if (gpu := gpu_of(name)) is None:
        known = ", ".join(GPUS).replace("|", ", ")
        raise ConfigError(f"{name} is not a known GPU: set gpu to one of {known}")
    if not work.is_half:
        raise ConfigError(
            f"the run would compute in fp32 on {name}, whose speed in fp32 is not known: set pretrain.recipe.precision "
            f"to {'bf16' if gpu.has_bf16 else 'fp16, since it has no bf16'}"
        )
    speed = num_processes * gpu_tokens_per_second(gpu, cost, work)
    memory_bytes = gpu.memory_gib << 30 if config.gpu else free_memory_bytes()
    share = f"{ASSUMED_MFU:.0%} of the data sheet's {gpu.peak_flops / 1e12:.0f} TFLOP/s"
    return Machine(f"{num_processes} x {name}", memory_bytes, num_processes, speed, share)
