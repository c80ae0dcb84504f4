"""What `auto` means in the processes that tests start: what the test says, whatever their machine has."""

import os
import subprocess
import sys

from tests.support import precision
from tests.support.training import SOURCES

ASK = f"""
import os
from longmlm.runtime.launch import resolved_precision

for said in {precision.MEANINGS}:
    os.environ["{precision.VARIABLE}"] = said
    print(resolved_precision("auto"))
del os.environ["{precision.VARIABLE}"]
try:
    resolved_precision("auto")
except AssertionError:
    print("not said")
"""


def test_a_child_of_a_test_does_not_ask_its_machine() -> None:
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    child = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.splitlines() == [*precision.MEANINGS.values(), "not said"]
