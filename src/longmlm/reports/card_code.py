"""Python code on a model card that loads the model, from a hub or a folder.

A card's code is checked without running what was rendered: `runnable` has the variable FOLDER in place of the address,
and a check passes the folder as data.

    on a card         fill_mask = pipeline("fill-mask", model="owner/name")
    runnable          fill_mask = pipeline("fill-mask", model=FOLDER)
"""

from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from longmlm.escaping import quoted
from longmlm.reports.pages import render
from longmlm.settings.publishing import Hub

OPTIONS = {  # of pipelines for fine-tuned models
    "text-classification": Markup(", truncation=True"),
    "token-classification": Markup(', aggregation_strategy="simple"'),
}


WORDS = ("before", "after", "first", "second")  # the texts of an example: around a mask, and two to compare
EXAMPLES = {  # by language; English for others
    "en": ("This is ", ".", "A short text.", "A longer one."),
    "de": ("Das ist ", ".", "Ein kurzer Text.", "Ein längerer Text."),
    "es": ("Esto es ", ".", "Un texto corto.", "Un texto más largo."),
    "fr": ("C'est ", ".", "Un texte court.", "Un texte plus long."),
    "it": ("Questo è ", ".", "Un testo breve.", "Un testo più lungo."),
    "ja": ("今日は", "です。", "短い文です。", "もう少し長い文です。"),
    "nl": ("Dit is ", ".", "Een korte tekst.", "Een langere tekst."),
    "pt": ("Isto é ", ".", "Um texto curto.", "Um texto mais longo."),
    "ru": ("Это ", ".", "Короткий текст.", "Текст длиннее."),
    "zh": ("今天天气很", "。", "一段短文。", "一段更长的文字。"),
}

CodeTemplate = Literal["load_model.md", "load_task.md", "load_longformer.md", "load_sentences.md", "load_onnx.md"]


@dataclass(frozen=True, slots=True)
class Address:
    """What a card's code loads the model from: a repository on a hub, or a folder."""

    name: str
    hub: Hub = "storage"
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class LoadingCode:
    """A block of code; `task` is that of a pipeline, which reads long texts in chunks if it has a `stride`.

    Its example is in `language`, an ISO 639-1 code.
    """

    template: CodeTemplate
    task: str = "fill-mask"
    stride: int | None = None
    language: str = "en"

    def on_card(self, address: Address) -> Markup:
        """Returns the block for a card."""
        source, revision = quoted(address.name), Markup()
        if address.revision:
            revision = Markup(", revision={}").format(quoted(address.revision))
        if address.hub == "ms":
            code = self._rendered(Markup("folder"), address=source, hub=address.hub)
        else:
            code = self._rendered(source + revision, hub=address.hub)
        return Markup("```python\n{}```\n").format(code)

    @property
    def runnable(self) -> str:
        """The code that loads the model from the folder in the variable FOLDER."""
        return str(self._rendered(Markup("FOLDER"), hub="storage")).strip()

    def _rendered(self, source: Markup, **where: str) -> Markup:
        """Returns the block, in which `source` is the argument, or the arguments, that name the model."""
        option = OPTIONS.get(self.task, Markup())
        if self.stride:
            option += Markup(", stride={}").format(self.stride)
        texts = EXAMPLES.get(self.language.partition("-")[0].lower(), EXAMPLES["en"])
        words = dict(zip(WORDS, map(Markup, texts), strict=True))
        return render(self.template, source=source, task=quoted(self.task), option=option, words=words, **where)
