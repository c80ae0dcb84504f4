"""Imported by Python when a child of a test starts."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
from tests.support import precision, untrained

sys.path.pop()
untrained.allow()
precision.force()
