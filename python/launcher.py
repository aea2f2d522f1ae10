#!/usr/bin/env python3
import sys

from shardctl.__main__ import main

sys.exit(main())
