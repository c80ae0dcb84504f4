"""From a domain corpus in JSONL files to a long model of your own, one stage after the other.

    python domain_corpus.py 'contracts/*.jsonl' --model nlpaueb/legal-bert-base-uncased --output out/contracts

Each line of the files is one document, {"text": "..."}. `longmlm run` does the same in one command; here you see the
stages, and can look at the result of one before the next. Start it again after an interruption: what is done is
skipped, and training goes on from its last checkpoint. TOML files after --settings override what follows from model,
corpus and length; `longmlm STAGE FILE --help` explains the settings.

The recommended 3,000 steps take hours on a GPU with a model of BERT's size: the plan, printed first, estimates them.
"""

import argparse
import glob
import hashlib
import json
import subprocess
import sys
from pathlib import Path

SHORTEST = 200  # characters of a document; shorter ones teach nothing about long texts
STAGES = {
    "plan": "tokens, epochs, memory and hours: stop here if they are not what you expect",
    "prepare": "text to rows of whole sentences; OUTPUT/rows/index.html shows fill rates and what was set aside",
    "extend": "more positions, computed from the trained ones; the lowest layers are distilled on the rows",
    "pretrain": "training until the accuracy is recovered; OUTPUT/run/metrics.jsonl has every number",
    "evaluate": "base model and long model on the same masked tokens; OUTPUT/evaluation/index.html",
    "release": "a folder that transformers loads; refused while the base model is still better",
}


def clean(pattern: str, output: Path) -> tuple[int, int]:
    """Writes the documents that are long enough, once each, and returns how many were kept and left out."""
    seen: set[bytes] = set()
    num_documents = 0
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", encoding="utf-8") as kept:
        for path in sorted(glob.glob(pattern, recursive=True)):
            for line in Path(path).read_text(encoding="utf-8").splitlines():
                text = json.loads(line)["text"].strip()
                num_documents += 1
                digest = hashlib.sha256(text.encode()).digest()
                if len(text) >= SHORTEST and digest not in seen:
                    seen.add(digest)
                    kept.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return len(seen), num_documents - len(seen)


def longmlm(*words: str) -> str:
    """Runs a command of longmlm and returns what it printed; exits with its code if it fails."""
    command = [sys.executable, "-m", "longmlm", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout, end="")
        sys.exit(done.returncode)
    return done.stdout


def main() -> None:
    """Cleans the corpus, writes the pipeline file and runs its stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="path or glob of JSONL files")
    parser.add_argument("--model", required=True, help="folder or hub name of the base model")
    parser.add_argument("--length", default="1536", help="positions of the long model")
    parser.add_argument("--language", default="en", help="ISO 639-1 code of the corpus")
    parser.add_argument("--output", type=Path, required=True, help="folder for everything")
    parser.add_argument("--settings", nargs="*", default=[], help="TOML files that override settings of the stages")
    arguments = parser.parse_args()
    output: Path = arguments.output

    cleaned = output / "corpus.jsonl"
    if not cleaned.exists():
        num_kept, num_left_out = clean(arguments.corpus, cleaned)
        print(f"{cleaned}: {num_kept:,} documents; {num_left_out:,} short ones and copies left out", flush=True)

    pipeline = output / "mine.toml"  # keep it: every stage can be run from it by hand
    if not pipeline.exists():
        options = ("--model", arguments.model, "--corpus", str(cleaned), "--length", arguments.length)
        pipeline.write_text(
            longmlm("init", *options, "--language", arguments.language, "--output", str(output)), encoding="utf-8"
        )

    for stage, purpose in STAGES.items():
        result = {"extend": "long", "release": "release"}.get(stage)  # these two never overwrite their result
        if result and (output / result).exists():
            print(f"== {stage}: done before", flush=True)
            continue
        print(f"== {stage}: {purpose}", flush=True)
        print(longmlm(stage, str(pipeline), *arguments.settings), end="", flush=True)
    print(f"\nAutoModel.from_pretrained({str(output / 'release')!r}) loads the result")


if __name__ == "__main__":
    main()
