"""Settings without effect: where each is refused, and where it is accepted. All is TOML; "-" removes a setting."""

from typing import NamedTuple

MINI = "bundled:roberta-mini"
PIPELINE = f'model = "{MINI}"\ncorpus = ["a.csv"]\nlength = 256\noutput = "out"'
BASES = {
    "prepare": f'output = "rows"\n[recipe]\ntokenizer = "{MINI}"\nrow_length = 64\nsources = [{{files = ["a.csv"]}}]',
    "extend": f'base = "{MINI}"\noutput = "long"\nrecipe.num_positions = 256',
    "pretrain": f'run = "run"\nrows = "rows"\nstart.checkpoint = "{MINI}"\n'
    "recipe = {num_steps = 100, batch_tokens = 640, learning_rate = 1e-4}",
    "evaluate": f'rows = "rows"\noutput = "out"\nbase = "{MINI}"\nlong_after = "{MINI}"',
    "release": 'model = "run"\nrows = "rows"\noutput = "release"\ncard.title = "T"',
    "checkpoints": 'run = "run"',
    "run": PIPELINE,
}
HUB = 'publish = "hf:owner/name"\ncard.license = "mit"'
FOLDER = 'publish = "folder:x"\ncard.license = "mit"'
OWN_SOURCE = 'corpus = "-"\nprepare.recipe.sources = [{files = ["a.csv"], language = "de", text_field = "text"}]'
UNTRAINED = 'start = {checkpoint = "-", architecture = "a", tokenizer = "b"}'
PAIRS = 'recipe = {pairs = true, packing = "doc-sentences"}'
DECAY, WINDOW = 'recipe.schedule = "constant-then-decay"', "recipe.attention_window = 64"
WORDS, CHINESE = 'recipe.words = "rjieba"', 'recipe.sources.0.language = "zh-hans"'
TRACKED, TENSORBOARD = 'tracking.tracker = "wandb"', 'tracking.tracker = "tensorboard"'


class Refused(NamedTuple):
    """A setting, where it is refused in a line that names another one, and where it is accepted (None: nowhere)."""

    command: str
    setting: str
    where: str
    named: str
    accepted: str | None = ""


REFUSED = (
    Refused("run", 'revision = "main"', 'model = "-"\nextension = false', "model"),
    Refused("run", 'language = "zh"', OWN_SOURCE, "source"),
    Refused("run", 'text_field = "label"', OWN_SOURCE, "source"),
    Refused("run", "pretrain.runtime.stop_when_recovered = true", "extension = false", "extension"),
    Refused("run", "pretrain.recipe.isolate_documents = true", 'prepare.recipe.packing = "doc-sentences"', "packing"),
    Refused("prepare", "public = true", "", "publish", HUB),
    Refused("prepare", "public = true", FOLDER, "publish", HUB),
    Refused("prepare", 'revision = "main"', "", "publish", HUB),
    Refused("prepare", 'tag = "v1"', FOLDER, "publish", HUB),
    Refused("prepare", 'card.title = "T"', "", "publish", HUB),
    Refused("prepare", 'card.license = "mit"', "", "publish", HUB),
    Refused("prepare", 'card.data = ["novels"]', "", "publish", HUB),
    Refused("prepare", "recipe.prevent_leaks = true", 'recipe.duplicates = "near"', "duplicates"),
    Refused(
        "prepare", "recipe.short_row_share = 0.1", "", "pairs", "recipe = {pairs = true, packing = 'doc-sentences'}"
    ),
    Refused("prepare", 'recipe.terms = "t.txt"', "", "words", f"{WORDS}\n{CHINESE}"),
    Refused("prepare", WORDS, "", "language", CHINESE),
    Refused("prepare", WORDS, 'recipe.sources.0.language = "ko"', "language", 'recipe.sources.0.language = "ja"'),
    Refused("prepare", 'recipe.sources.0.subset = "x"', "", "dataset", None),
    Refused("prepare", 'recipe.sources.0.split = "x"', "", "dataset", None),
    Refused("prepare", 'recipe.sources.0.revision = "x"', "", "dataset", None),
    Refused("prepare", 'recipe.sources.0.delimiter = ";"', 'recipe.sources.0.files = ["a.jsonl"]', "files", None),
    Refused("prepare", 'recipe.sources.0.quoting = "none"', 'recipe.sources.0.files = ["a.jsonl"]', "files", None),
    Refused("prepare", 'recipe.sources.0.text_field = "t"', 'recipe.sources.0.files = ["a.txt"]', "files", ""),
    Refused("release", "public = true", 'publish = "s3://bucket/name"', "publish", HUB),
    Refused("extend", "recipe.alpha = 0.3", "", "initialisation", 'recipe.initialisation = "hierarchical"'),
    Refused("extend", "recipe.smooth_terms = 3", 'recipe.initialisation = "tile"', "initialisation"),
    Refused("extend", "recipe.num_global_tokens = 2", "", "attention_window", WINDOW),
    Refused("extend", "recipe.num_global_tokens = 2", "recipe.attention_window = 256", "attention_window", WINDOW),
    Refused("extend", "recipe.seed = 1", 'recipe.initialisation = "hierarchical"', "initialisation"),
    Refused("extend", "recipe.seed = 1", 'recipe.initialisation = "tile"', "new_head", "recipe.new_head = true"),
    Refused("extend", "recipe.seed = 1", 'recipe = {num_positions = "-", add_tokens = "a.txt"}', "num_positions"),
    Refused("pretrain", "recipe.decay_steps = 9", "", "schedule", DECAY),
    Refused("pretrain", "recipe.decay_steps = 9", 'recipe.schedule = "cosine"', "schedule", DECAY),
    Refused("pretrain", "recipe.held_out.masking.mask_patterns = 1", "", "held_out", None),
    Refused("evaluate", "recipe.held_out.masking.mask_patterns = 1", "", "held_out", None),
    Refused("pretrain", 'recipe.held_out.masking.unit = "word"', "", "held_out", None),
    Refused("evaluate", 'recipe.held_out.masking.unit = "span"', "", "held_out", None),
    Refused("pretrain", "runtime.peak_flops = 1e12", 'recipe.precision = "no"', "recipe.precision"),
    Refused("pretrain", 'tracking.project = "p"', "", "tracker", TRACKED),
    Refused("pretrain", 'tracking.entity = "e"', "", "tracker", TRACKED),
    Refused("pretrain", 'tracking.name = "n"', "", "tracker", TRACKED),
    Refused("pretrain", 'tracking.project = "p"', TENSORBOARD, "tracker", TRACKED),
    Refused("pretrain", 'tracking.entity = "e"', TENSORBOARD, "tracker", TRACKED),
    Refused("pretrain", 'tracking.name = "n"', TENSORBOARD, "tracker", TRACKED),
    Refused("pretrain", 'start.revision = "main"', UNTRAINED, "checkpoint"),
    Refused("pretrain", "start.new_head = true", UNTRAINED, "checkpoint"),
    Refused("pretrain", 'start.tokenizer = "t"', "", "checkpoint", 'start = {checkpoint = "-", architecture = "a"}'),
    Refused("checkpoints", "step = 1", "", "export", 'action = "export"\noutput = "o"'),
    Refused("checkpoints", 'output = "o"', 'action = "verify"', "export", 'action = "export"'),
)
