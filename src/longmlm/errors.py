"""Errors that the user can fix: a command prints the one-line message and exits with code 2."""


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 row", "2,000 rows" and "2 classes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


class UserError(Exception):
    """An error whose one-line message says what is wrong, where, and how to fix it."""


class ConfigError(UserError):
    """A settings file or a command-line option that cannot be used."""


class DataError(UserError):
    """A corpus, a tokenizer or packed rows that cannot be used."""


class ArtifactError(UserError):
    """A stage's output file that is missing, damaged, or of an unsupported format."""


class FolderError(UserError):
    """A folder that is damaged, incomplete, or that already exists."""


class ModelError(UserError):
    """A model that cannot be used: missing, of an unsupported architecture, without an MLM head."""


class ModelNotFoundError(ModelError):
    """A model name that is neither a folder nor a repository, or a revision that the repository does not have."""


class ModelUnavailableError(ModelError):
    """A model whose hub does not respond."""


class PositionsError(UserError):
    """A position table that cannot be extended to the requested length."""


class CheckpointError(UserError):
    """A run's checkpoint that is missing, damaged, or from a different run."""


class TrainingError(UserError):
    """A run that cannot start, continue or resume."""


class RankError(TrainingError):
    """Raised by one rank alone, which prints it at once: the other ranks only notice that it has exited."""


class ReleaseError(UserError):
    """A model that must not be released as it is."""


class UnavailableError(ReleaseError):
    """A hub that does not respond, or not yet."""
