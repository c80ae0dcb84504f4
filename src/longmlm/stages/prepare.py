"""The prepare stage: packs text into rows, writes a page about them, and publishes them if a target is set."""

import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from longmlm.artifacts.artifact import PAGE_FILE, present
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.files import left_out
from longmlm.data.notes import markup_note, rows_notes, unknown_notes
from longmlm.data.ray_executor import run_slices_on_ray
from longmlm.data.rows import open_rows
from longmlm.data.vocabulary import decode, load_vocabulary
from longmlm.hubs.publish import publish
from longmlm.release.dataset import SHARDS, Publication, write_dataset
from longmlm.reports.packing import Example, packing_page, packing_report
from longmlm.reports.pages import made_with, write_page
from longmlm.settings.prepare import PrepareConfig
from longmlm.staleness import absent_text


def prepare(config: PrepareConfig) -> None:
    """Writes the rows with a page about them, prints what they are made of, and publishes them if a target is set."""
    output, vocabulary = Path(config.output), load_vocabulary(config.recipe.tokenizer)
    if note := left_out([pattern for source in config.recipe.sources for pattern in source.files]):
        print(note, flush=True)
    for note in vocabulary.notes:
        print(note)
    run, existed = run_slices if config.runtime.executor == "local" else run_slices_on_ray, output.exists()
    executor = partial(run, num_workers=config.runtime.num_workers)
    manifest = prepare_rows(config.recipe, vocabulary, output, executor, config.runtime.encoder)
    page = output / PAGE_FILE
    if not page.is_file():
        row = open_rows(output, "train", verified=existed)[0]
        example = Example(len(row), len(row.document_starts), decode(vocabulary, row.input_ids))
        write_page(packing_page(manifest, example, made_with("prepare", present(asdict(config)))), page)
    sources, shares = config.recipe.sources, manifest.report.unknown_shares
    notes = [absent_text(config)] if existed else []
    if not any(notes):
        notes = [markup_note(sources) or "", *rows_notes(manifest), *unknown_notes(sources, vocabulary, shares)]
    print("\n".join([packing_report(manifest), *filter(None, notes), f"page: {page}", f"rows: {output}"]))
    if config.publish:
        publish_rows(config)


def publish_rows(config: PrepareConfig) -> None:
    """Publishes the rows as a dataset, from a temporary folder."""
    output = Path(config.output)
    target = replace(config.target("dataset"), owns=SHARDS)
    repository = target.name if config.hub_scheme else None
    publication = Publication(config.recipe.tokenizer, config.card, repository, config.revision)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name
        folder.mkdir()
        write_dataset(output, publication, folder)
        print(f"published: {publish(folder, target, f'Rows of {output.name}')}")
