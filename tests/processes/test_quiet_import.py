"""Importing longmlm leaves a notebook's transformers as it was."""

import os
import subprocess
import sys


def test_importing_the_loader_does_not_silence_transformers() -> None:
    code = (
        "import logging, longmlm.model.loading, transformers.utils.logging as log;"
        "assert log.is_progress_bar_enabled() and log.get_verbosity() == logging.WARNING"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRANSFORMERS_VERBOSITY"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
