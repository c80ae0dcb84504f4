"""The prepare stage: text to packed rows with a page about them, published if a target is set."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from longmlm.config import to_toml
from longmlm.data.engine import prepare_rows
from longmlm.data.executor import run_slices
from longmlm.data.rows import Rows, open_rows
from longmlm.data.vocabulary import Vocabulary, decode, load_vocabulary
from longmlm.hubs.publish import check_can_publish, publish
from longmlm.hubs.target import publishing_target
from longmlm.release.dataset import SHARDS, Publication, write_dataset
from longmlm.reports.packing import Example, packing_page, packing_report
from longmlm.reports.pages import PAGE_FILE, write_page
from longmlm.settings.prepare import PrepareConfig, Source


def prepare(config: PrepareConfig) -> None:
    """Writes the rows with a page about them, prints what they are made of, and publishes them if a target is set."""
    if config.publish:
        check_can_publish(publishing_target(config, "dataset"))
    output, vocabulary = Path(config.output), load_vocabulary(config.recipe.tokenizer)
    executor, existed = partial(run_slices, num_workers=config.runtime.num_workers), output.exists()
    manifest = prepare_rows(config.recipe, vocabulary, output, executor)
    page = output / PAGE_FILE
    if not page.is_file():
        example = example_of(open_rows(output, "train", verified=existed), vocabulary)
        made_by = f"# longmlm prepare settings.toml\n{to_toml(without_paths(config))}"
        write_page(packing_page(manifest, example, made_by), page)
    print(packing_report(manifest.report))
    print(f"page: {page}")
    print(f"rows: {output}")
    if config.publish:
        publish_rows(config)


def example_of(rows: Rows, vocabulary: Vocabulary) -> Example:
    """Returns the first row with its text."""
    row = rows[0]
    return Example(len(row), len(row.document_starts), decode(vocabulary, row.input_ids))


def without_paths(config: PrepareConfig) -> PrepareConfig:
    """Returns the settings with the last parts of absolute paths only, as a page may show them to anyone."""
    recipe = config.recipe
    scheme, _, folder = (config.publish or "").partition(":")
    sources = tuple(_without_paths(source) for source in recipe.sources)
    return replace(
        config,
        output=_public(config.output),
        publish=f"folder:{_public(folder)}" if scheme == "folder" else config.publish,
        recipe=replace(recipe, tokenizer=_public(recipe.tokenizer), sources=sources),
    )


def _without_paths(source: Source) -> Source:
    files = tuple(_public(file) for file in source.files)
    return replace(source, files=files, dataset=_public(source.dataset) if source.dataset else None)


def _public(path: str) -> str:
    return Path(path).name if Path(path).is_absolute() else path


def publish_rows(config: PrepareConfig) -> None:
    """Publishes the rows as a data set, by way of a temporary folder."""
    output = Path(config.output)
    target = replace(publishing_target(config, "dataset"), owns=SHARDS)
    publication = Publication(config.recipe.tokenizer, config.card, config.hub_repository, config.revision)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name
        folder.mkdir()
        write_dataset(output, publication, folder)
        print(f"published: {publish(folder, target, f'Rows of {output.name}')}")
