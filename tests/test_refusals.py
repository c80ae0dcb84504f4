"""Settings that are refused: each mistake is one line, which names the files, the key and what is needed."""

from pathlib import Path

import pytest

from longmlm.cli import COMMANDS
from longmlm.config import parse
from longmlm.errors import ConfigError
from tests.support.prepare_settings import written
from tests.support.unused_settings import BASES

DISTILLED = "rows = 'rows'\n[recipe]\ninitialisation = 'distilled'\n"
A = "files = ['a']\n"
PAIRS = "[recipe]\npairs = true\npacking = 'doc-sentences'\n"
SOURCE = "[[recipe.sources]]\n"
NO_CORPUS = "corpus = []\n[[prepare.recipe.sources]]\nfiles = ['b.jsonl']\n"
MIXED = f"{NO_CORPUS}name = 'laws'\n[[prepare.recipe.sources]]\nfiles = ['c.jsonl']\n"
REFUSED = [  # a command, what is added to its settings, and words of the message
    ("prepare", "recipe.rowlength = 9", "unknown key recipe.rowlength, did you mean row_length?"),
    ("prepare", "row_length = 3", "unknown key row_length, did you mean recipe.row_length?"),
    ("prepare", "runtime.row_length = 3", "unknown key runtime.row_length, did you mean recipe.row_length?"),
    ("prepare", f"{SOURCE}files = ['a']\ntextfield = 'b'", "recipe.sources.0.textfield, did you mean text_field?"),
    ("prepare", "zzzzz = 1", "unknown key zzzzz"),
    ("prepare", "recipe.row_length = '512'", 'recipe.row_length: an integer is needed, not "512"'),
    ("prepare", "recipe.row_length = true", "recipe.row_length: an integer is needed, not true"),
    ("prepare", "recipe.packing = 'sentences'", 'recipe.packing: "full-sentences", "doc-sentences" or'),
    ("prepare", f"{SOURCE}files = 'a.txt'", 'recipe.sources.0.files: a list is needed, as in ["a.txt"]'),
    ("prepare", f"{SOURCE}files = []", "recipe.sources.0: a source needs"),
    ("prepare", f"{SOURCE}language = 'en'", "recipe.sources.0: a source needs"),
    ("prepare", f"{SOURCE}files = ['a']\ndelimiter = ''", "recipe.sources.0: delimiter"),
    ("prepare", "[recipe.sources]\nfiles = ['a']", "recipe.sources: a list is needed"),
    ("prepare", "recipe.row_length = 2", "recipe.row_length must be at least 3, not 2"),
    ("prepare", "recipe.held_out_fraction = 1", "recipe.held_out_fraction must be below 1, not 1"),
    ("prepare", "recipe.held_out_fraction = 0.0", "recipe.held_out_fraction must be above 0, not 0.0"),
    ("prepare", "recipe.held_out_fraction = nan", "recipe.held_out_fraction must be below 1, not NaN"),
    ("prepare", "recipe.pairs = true", 'set packing = "doc-sentences" or "sentence-pair"'),
    ("prepare", "recipe.packing = 'sentence-pair'", "set pairs = true"),
    ("prepare", f"{PAIRS}row_length = 4", "row_length must be at least 5 with pairs"),
    ("prepare", f"{PAIRS}short_row_share = 1.1", "recipe.short_row_share must be at most 1, not 1.1"),
    ("prepare", f"{SOURCE}{A}name = 'a'\n{SOURCE}{A}name = 'a'", "2 sources are called 'a'"),
    ("prepare", f"{SOURCE}{A}name = 'source-2'\n{SOURCE}{A}", "2 sources are called 'source-2'"),
    ("prepare", f"{SOURCE}{A}held_out = true", "every source is held out"),
    ("prepare", f"{SOURCE}{A}held_out = true\nsplit_field = 'book'", "no effect with held_out"),
    ("prepare", f"{SOURCE}{A}name = '2024'", "name must be printable and have a letter"),
    ("prepare", f'{SOURCE}{A}name = "a\\nb"', "name must be printable and have a letter"),
    (
        "prepare",
        f"{SOURCE}{A}dataset = 'o/n'\nsplit = 'train'",
        "needs either at least one path in `files` or",
    ),
    ("prepare", f"{SOURCE}dataset = 'o/n'", "a `dataset` needs the `split` to read"),
    ("prepare", f"{SOURCE}{A}revision = 'main'", "subset, split and revision need a `dataset`"),
    ("prepare", f"{SOURCE}{A}text_field = 'a'\ntext_fields = ['a', 'b']", "both name the text: set one of them"),
    ("prepare", f"{SOURCE}{A}text_fields = ['b', 'b']", "text_fields names a field twice"),
    ("prepare", "publish = 'hf:owner/name'", "publish needs the licence of the text: set card.license"),
    ("prepare", "publish = 'owner/name'", "publish must be hf:OWNER/NAME, ms:OWNER/NAME, folder:PATH or a URL"),
    ("prepare", "publish = 'folder:out'\ntag = 'v1'", "revision and tag need publish on a hub"),
    ("release", "publish = 'hf:owner/name@dev'", "publish takes no @REVISION: set revision"),
    ("release", "publish = 'ms:owner/name'\nrevision = 'x'", "set tag instead of revision"),
    ("release", "public = true", "public needs publish"),
    ("release", "recipe.max_shard_size = '5 GB'", "max_shard_size must be a size such as"),
    ("release", "recipe.max_shard_size = '0MB'", "max_shard_size must be a size such as"),
    ("release", "recipe.max_shard_size = '1.5gb'", "max_shard_size must be a size such as"),
    ("pretrain", "recipe.weights.a = 0.0", "weights.a must be positive"),
    ("pretrain", "recipe.weights.a = inf", "weights.a must be positive"),
    ("pretrain", "recipe.weights = {a = {share = 0.0}, b = {share = 1.0}}", "weights.a must be positive"),
    ("pretrain", "recipe.weights = {a = {share = 0.4}, b = {share = 0.4}}", "add up to 0.8: they must add up to 1"),
    ("pretrain", "recipe.weights = {a = {share = 0.4}, b = 2.0}", "weights.b must be a number, or"),
    ("pretrain", "recipe.weights.a.shares = 1.0", "weights.a must be a number, or"),
    ("extend", "recipe.alpha = 0.5\nrecipe.initialisation = 'hierarchical'", "recipe: alpha must not be 0.5"),
    ("extend", "recipe.alpha = -0.1", "recipe.alpha must be at least 0, not -0.1"),
    ("extend", "recipe.attention_window = 0", "recipe.attention_window must be at least 1, not 0"),
    ("extend", "recipe.num_global_tokens = -1", "recipe.num_global_tokens must be at least 0, not -1"),
    ("extend", "recipe.local_layers = 2", "local_layers has no effect without attention_window"),
    ("extend", f"{DISTILLED}attention_window = 4", "remove attention_window, or set distillation.window"),
    ("extend", f"{DISTILLED}mode = 'generated'", "set initialisation to hierarchical or tile"),
    ("extend", f"{DISTILLED}add_tokens = 'terms.txt'", "cannot be combined with add_tokens"),
    ("extend", f"{DISTILLED}distillation.layers = 0", "recipe.distillation.layers must be at least 1, not 0"),
    ("extend", "recipe.distillation.layers = 1", "distillation has no effect with initialisation = fitted"),
    ("pretrain", "recipe.schedule = 'constant-then-decay'", "constant-then-decay needs decay_steps"),
    ("pretrain", "recipe.batch_tokens = 1000000000", "recipe.batch_tokens must be at most 100,000,000, not 1000000000"),
    ("pretrain", "recipe.learning_rate = inf", "recipe.learning_rate must be finite, not Infinity"),
    ("pretrain", "recipe.warmup_steps = 101", "warmup_steps and decay_steps must not exceed num_steps"),
    ("pretrain", "recipe.masking = {masked_share = 0.6, random_share = 0.6}", "the sum of masked_share and random"),
    ("run", "pretrain.recipe.num_step = 3", "unknown key pretrain.recipe.num_step, did you mean num_steps?"),
    ("run", "lenght = 3", "unknown key lenght, did you mean length?"),
    ("run", "num_steps = 3", "unknown key num_steps, did you mean pretrain.recipe.num_steps?"),
    ("run", "[pretain.recipe]\nnum_steps = 3", "unknown key pretain, did you mean pretrain?"),
    ("run", "[recipe]\nnum_steps = 3", "unknown key recipe, did you mean "),
    ("run", "[compare]\nseeds = [1]", "compare is only for longmlm compare: move this table to a separate file"),
    ("run", "pretrain.recipe.num_steps = 0", "pretrain.recipe.num_steps must be at least 1, not 0"),
    ("run", "pretrain = 3", "pretrain: a table is needed, not 3"),
    ("run", "extend = 3", "extend: a table is needed, not 3"),
    (
        "run",
        "extension = false\n[extend.recipe]\nseed = 1",
        "extend: remove the table of this stage: extension = false",
    ),
    ("run", "pretrain.start.new_head = true\nevaluate.runtime.rows_per_batch = 1", "evaluate: remove the table"),
    ("run", "extend.recipe.new_head = true", "extend.recipe.new_head leaves no base model"),
    ("run", "corpus = []", "no text: set corpus"),
    *(("run", f"rows = '{one}'", "rows must be a folder of its own") for one in ("hf:o/n", "s3://b/rows", "", "out")),
    ("run", NO_CORPUS.partition("\n")[2], "corpus and prepare.recipe.sources both name the text"),
    ("run", "pretrain.start = {architecture = 'c', tokenizer = 't'}", "model and pretrain.start.architecture both say"),
    ("run", "pretrain.recipe.weights.a = 2", "weights need several sources, but source-1 is the only one"),
    (
        "run",
        f"{MIXED}[pretrain.recipe.weights]\na = 2",
        "weights.a names no source to train on: name one of laws, source",
    ),
    ("run", f"{MIXED}held_out = true\n[pretrain.recipe.weights]\nlaws = 2", "laws is the only one to train on"),
    ("run", f"{MIXED}[pretrain.recipe.weights]\nlaws = {{share = 1.0}}", "weights has no share for source-2"),
    ("run", "corpus = 'x'", 'corpus: a list is needed, as in ["x"]'),
    ("run", "corpus = {a = 1}", "corpus: a list is needed, not a table"),
    ("run", "release.publish = ['s3://KEY:SECRET@host/b']", "release.publish: a string is needed, not a list"),
    ("run", "pretrain.recipe.schedule = 'lin'", '"linear", "cosine" or "constant-then-decay" is needed, not "lin"'),
    ("run", "pretrain.recipe.weights = 3", "pretrain.recipe.weights: a table is needed, not 3"),
    ("run", "pretrain.recipe.weights.a = 'x'", 'pretrain.recipe.weights.a: a number or a table is needed, not "x"'),
    ("run", f"language = ['{'a' * 99}']", "language: a string is needed, not a list"),
    ("run", "prepare.output = 'x'", "prepare.output: cannot be set in a pipeline, which derives it from"),
    ("run", "[pretrain]\nrows = 'x'\n[release]\nmodel = 'x'", "release.model: cannot be set in a pipeline"),
]
BASE_KEYS = [  # what contradicts the value that stands in for a wrong base key is no error of the user's
    (f"{NO_CORPUS}", "language = 3", "language: a string is needed, not 3"),
    (f"{NO_CORPUS}", "length = 512.0", "length: an integer is needed, not 512.0"),
    (f"{NO_CORPUS}", "length = 's3://KEY:SECRET@host/b'", 'length: an integer is needed, not "s3://***@host/b"'),
    (f"{NO_CORPUS}", f"length = '{'a' * 99}'", f'length: an integer is needed, not "{"a" * 59}…'),
    (f"{NO_CORPUS}", "until = 'train'", 'until: "extend", "prepare", "pretrain", "evaluate" or "release" is needed'),
    (f"{NO_CORPUS}", "length = 2", "length must be at least 3, not 2"),
    ("extend.recipe.attention_window = 2048", "length = 8192.0", "length: an integer is needed"),
    ("extend.recipe.new_head = true", 'extension = "no"', 'extension: true or false is needed, not "no"'),
    ("pretrain.recipe.isolate_documents = true", "extension = 1", "extension: true or false is needed"),
]


def refusal(folder: Path, command: str, *texts: str) -> str:
    """Returns the message, without the names of the files, with which the settings of a command are refused."""
    paths = [written(folder, f"{number}.toml", text) for number, text in enumerate((BASES[command], *texts))]
    with pytest.raises(ConfigError) as raised:
        parse(COMMANDS[command], paths)
    files, _, message = str(raised.value).partition(": ")
    assert files == " + ".join(paths) and "\n" not in message and "SECRET" not in message
    return message


@pytest.mark.parametrize(("command", "text", "words"), REFUSED)
def test_a_mistake_is_named_in_one_line(tmp_path: Path, command: str, text: str, words: str) -> None:
    assert words in refusal(tmp_path, command, text)


@pytest.mark.parametrize(("beside", "text", "words"), BASE_KEYS)
def test_a_mistake_in_a_base_key_is_the_only_one(tmp_path: Path, beside: str, text: str, words: str) -> None:
    message = refusal(tmp_path, "run", beside, text)
    assert message.startswith(words) and "; " not in message


def test_all_mistakes_are_reported_at_once_with_misspelt_keys_first(tmp_path: Path) -> None:
    lines = "length = 'x'\noutptu = 'y'\n[pretrain.recipe]\nnum_steps = 'many'\nnum_step = 3"
    message = refusal(tmp_path, "run", lines)
    parts = ["unknown key", "length: an integer", "pretrain.recipe.num_steps: an integer"]
    assert [message.index(part) for part in parts] == sorted(message.index(part) for part in parts)
    assert "outptu, did you mean output?" in message and "key pretrain.recipe.num_step," in message
