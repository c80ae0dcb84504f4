"""What is saved of a tokenizer: nothing about this machine, or about how it was loaded here."""

import json
from pathlib import Path

from longmlm.model.carried import save_model
from longmlm.model.loading import load_model

ABOUT_LOADING = {
    "is_local": True,
    "local_files_only": True,
    "_commit_hash": "0" * 40,
    "cache_dir": "/deep/cache",
    "name_or_path": "/deep/base",
    "tokenizer_file": "/deep/tokenizer.json",
    "vocab_file": "/deep/vocab.txt",
    "special_tokens_map_file": "/deep/special_tokens_map.json",
    "token": "hf_planted",
    "proxies": {"https": "https://me:planted@host"},
}


def test_how_a_tokenizer_was_loaded_is_not_saved(copy: Path, tmp_path: Path) -> None:
    path = copy / "tokenizer_config.json"
    given = json.loads(path.read_text())
    path.write_text(json.dumps({**given, **ABOUT_LOADING}))
    folder = copy
    for name in ("long", "checkpoint", "release"):  # each made of the one before
        loaded = load_model(str(folder))
        folder = tmp_path / name
        save_model(loaded.model, loaded.tokenizer, loaded.carried, folder)
        saved = json.loads((folder / path.name).read_text())
        assert not saved.keys() & ABOUT_LOADING.keys()
        kept = {key.replace("extra_special", "additional_special"): value for key, value in given.items()}
        assert saved.items() >= kept.items()  # by the names that transformers 4 knows as well
        texts = [file.read_text() for file in folder.glob("*.json")]
        assert not [text for text in texts if "/deep" in text or "planted" in text or str(tmp_path) in text]
