"""Chromium for the tests of pages: SHARD_CHROMIUM, or one in PATH. Nothing is downloaded."""

import os
import shutil
import tempfile
import unittest
from pathlib import Path

CHROMIUM = os.environ.get("SHARD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None


class BrowserTest(unittest.TestCase):
    """Has `browser`, and a folder `work`, for all tests of its class."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = Path(cls.folder.name)
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        cls.folder.cleanup()
