"""The downstream command: fine-tunes every arm on a labelled task, trial by trial, and reports how the arms compare.

OUTPUT/downstream/
    set_aside/records.jsonl                 records that are no documents, with the reason
    trials/ARM/VALUES/seed-42-fold-0/       one folder per trial
    downstream.json, index.html             the results so far, written again after every trial
"""

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longmlm.artifacts import artifact
from longmlm.config import present
from longmlm.downstream.artifacts import ComparedTask, DownstreamComparison, DownstreamTrial
from longmlm.downstream.settings import DownstreamConfig
from longmlm.errors import ArtifactError, TrainingError, counted
from longmlm.ownership import remove_inside
from longmlm.processes import exclusive_lock
from longmlm.runtime.trials import TRIALS, Trials

SET_ASIDE = "set_aside"
MAX_LABELS = 8  # that are named
