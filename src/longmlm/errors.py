"""Exception to exit code: the errors that the person at the keyboard can mend."""


class UserError(Exception):
    """An error whose one-line message names what is wrong and the remedy; commands end on it with exit code 2."""


class ConfigError(UserError):
    """A configuration file or an override that cannot be used."""


class DataError(UserError):
    """A corpus, a tokenizer or packed rows that cannot be used."""


class ArtifactError(UserError):
    """A file that a stage wrote and that cannot be read: absent, damaged, or of another format."""


class FolderError(UserError):
    """A folder that is damaged, incomplete or in the way."""


class ModelError(UserError):
    """A checkpoint that cannot be used: absent, of another architecture, without an MLM head."""


class ModelNotFoundError(ModelError):
    """A model name that is neither a folder nor a repository, or a revision that the repository does not have."""


class PositionsError(UserError):
    """A position table that cannot be stretched as asked."""


class CheckpointError(UserError):
    """A run's checkpoint that is needed and not there, or of another run."""


class TrainingError(UserError):
    """A run that cannot start, go on or be resumed."""


class ReleaseError(UserError):
    """A model that must not be released as it is."""


class UnavailableError(ReleaseError):
    """A hub that does not answer, or not yet."""
