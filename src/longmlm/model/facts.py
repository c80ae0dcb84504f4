"""What is known of a model without its weights: its kind, its positions, its heads, its history, its licence."""

import pickletools
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from safetensors import SafetensorError, safe_open

from longmlm.artifacts.provenance import ModelSource, Provenance, read_provenance
from longmlm.errors import ModelUnavailableError, UnavailableError
from longmlm.hubs.licences import licence_of
from longmlm.hubs.model_files import CONFIG, MODULES, module_folders, weight_paths
from longmlm.hubs.models import (
    cached_file,
    check_has_weights,
    commit_of,
    config_of_model,
    file_of_model,
    hub_weight_names,
    is_folder,
    read_architecture,
)
from longmlm.model.families import (
    FAMILIES,
    check_architecture,
    has_head,
    num_usable_positions,
    planned_extension,
)
from longmlm.settings.extend import ExtendRecipe
from longmlm.settings.shipped import bundled_name

MAX_PICKLE_BYTES = 50_000_000  # the names of a .bin file take thousands


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model of a supported family, by its folder or hub name.

    Unless a property says otherwise, None means that only loading can tell. `config` has the keys of config.json as
    attributes. What takes a request to a hub is read when it is first used.
    """

    name: str
    revision: str | None = None
    config: SimpleNamespace | None = None
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def shown(self) -> str:
        """The name in messages."""
        return bundled_name(self.name)

    @property
    def num_positions(self) -> int | None:
        """Usable positions, without reserved ones."""
        return num_usable_positions(self.config) if self.config else None

    @cached_property
    def commit(self) -> str | None:
        """The commit of a model on a hub; None for a folder."""
        return None if is_folder(self.name) else commit_of(self.name, self.revision)

    @cached_property
    def weight_files(self) -> list[Path]:
        """The files of the weights; none if they are not on this machine or not complete."""
        if self.commit is None:
            return weight_paths(Path(self.name))
        config = cached_file(self.name, self.commit, CONFIG)
        paths = weight_paths(config.parent) if config else []
        last = paths[0].stem.rpartition("-of-")[2] if paths else ""  # of a model in several files
        number = int(last) if last.isdigit() and "-of-" in paths[0].stem else 1
        return paths if len(paths) == number else []

    @cached_property
    def weight_names(self) -> frozenset[str] | None:
        """The names of the weights, among other texts in a .bin file; on a hub, from headers of safetensors files."""
        if not self.weight_files and self.commit is not None:
            return hub_weight_names(self.name, self.commit) or None
        found = [_names_in(path) for path in self.weight_files]
        return frozenset().union(*filter(None, found)) or None if None not in found else None

    @property
    def has_head(self) -> bool | None:
        """Whether there are weights of an MLM head."""
        return has_head(self.config, self.weight_names) if self.config and self.weight_names else None

    @property
    def has_pair_head(self) -> bool | None:
        """Whether there are weights of a pair head."""
        if self.config is None or self.weight_names is None:
            return None
        head = FAMILIES[self.config.model_type].pair_head
        return any(name.startswith(f"{head}.") for name in self.weight_names)

    @cached_property
    def modules(self) -> tuple[str, ...] | None:
        """The folders of sentence-transformers modules; None without modules.json, or if a hub does not respond."""
        with suppress(ModelUnavailableError, UnavailableError):  # offline, the cache may hold config.json alone
            if path := file_of_model(self.name, self.revision, MODULES):
                return module_folders(path.parent) or ()
        return None

    @cached_property
    def licence(self) -> str | None:
        """The licence on the card of the model, or of its base model; None if a hub does not respond."""
        with suppress(ModelUnavailableError, UnavailableError):
            return licence_of(None, self.history()).identifier
        return None

    def history(self, will_extend: bool = False) -> Provenance:
        """Returns the history of a run that starts from this model or, if `will_extend`, from the long one."""
        before = Provenance() if will_extend else self.provenance
        return before.of_run(ModelSource(name=self.name, revision=self.commit))

    def check_extends(self, recipe: ExtendRecipe) -> None:
        """Raises a UserError if the model cannot be extended in this way, as far as its facts are known."""
        if self.num_positions is not None:
            source = ModelSource(name=self.shown)
            planned_extension(recipe, source, self.provenance, self.config, self.num_positions)

    def check_weights(self) -> None:
        """Raises ModelError for a folder without weights; those on a hub are not looked for."""
        if Path(self.name).is_dir():
            check_has_weights(self.name, Path(self.name))


def facts_of(name: str, revision: str | None = None) -> ModelFacts:
    """Returns the facts about a model in a folder or on a hub, of which config.json is downloaded.

    Raises ModelError if there is no such model, or its family is not supported.
    """
    config = config_of_model(name, revision)
    if config:
        check_architecture(config, bundled_name(name))
    return ModelFacts(name, revision, config, read_provenance(name))


def facts_of_architecture(config_file: str) -> ModelFacts:
    """Returns the facts about an untrained model, without a padding token, which its tokenizer decides."""
    config = SimpleNamespace(**read_architecture(config_file) | {"pad_token_id": None})
    check_architecture(config, config_file)
    return ModelFacts(config_file, config=config)


def _names_in(path: Path) -> set[str] | None:
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="numpy") as file:
                return set(file.keys())
        with zipfile.ZipFile(path) as archive:
            entry = next((item for item in archive.infolist() if item.filename.endswith("/data.pkl")), None)
            if entry is None or entry.file_size > MAX_PICKLE_BYTES:
                return None
            texts = (argument for _, argument, _ in pickletools.genops(archive.read(entry)))
            return {text for text in texts if isinstance(text, str)}
    except (SafetensorError, OSError, ValueError, zipfile.BadZipFile):  # loading reports it
        return None
