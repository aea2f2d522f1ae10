"""`hf` of huggingface_hub, with a GitHub that consists of one folder: played_github.py FOLDER ARGUMENTS...

FOLDER is the default branch of the only repository, an-owner/hf-shardctl. It serves the requests of hf's extensions;
other code of hf is as installed.
"""
import sys
from pathlib import Path

import httpx2
from huggingface_hub.cli import extensions, hf

PAGE = "https://github.com/an-owner/hf-shardctl"
FILES = "https://raw.githubusercontent.com/an-owner/hf-shardctl/HEAD/"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOLDER = Path(sys.argv.pop(1))


def content(url: str) -> "str | None":
    """The page or file at `url`; None if GitHub has none."""
    if url.startswith(FILES):
        file = FOLDER / url[len(FILES):]
        return file.read_text() if file.is_file() else None
    return {PAGE: "", f"{PAGE}.git/info/refs": f"{COMMIT} HEAD\0"}.get(url)


def request(method: str, url: str, **_: object) -> httpx2.Response:
    text = content(url)
    response = httpx2.Response(404 if text is None else 200, text=text or "", request=httpx2.Request(method, url))
    return response.raise_for_status()


assert callable(extensions._github_request)  # The one function through which hf reaches GitHub.
extensions._github_request = request
hf.main()
