"""Runs a program of tests beside a server: serve.py PROGRAM. SHARD_STORE_URL is the server, SHARD_STORE_FOLDER its folder."""
import os
import subprocess
import sys
import tempfile

import server

with tempfile.TemporaryDirectory() as folder:
    with server.Server(folder) as served:
        variables = {"SHARD_STORE_URL": served.url, "SHARD_STORE_FOLDER": folder, "SHARD_STORE_KEY_ID": server.KEY_ID,
                     "SHARD_STORE_SECRET": server.SECRET}
        sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, **variables}, check=False).returncode)
