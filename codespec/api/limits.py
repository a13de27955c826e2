"""Limits of a request, which the daemon checks and clients respect.

Text lengths are in characters, so a client that counts bytes stays within them.
"""

from __future__ import annotations

import re

MAX_BODY = 8 << 20  # bytes of a request body; each field has its own limit
MAX_SEPARATORS = 1 << 18  # JSON values per body: an empty list takes three bytes there, but seventy in memory
MAX_SIDE = 64 * 1024  # text on each side of a cursor, and of one other file
MAX_TEXT = 1 << 20  # any other text
MAX_PREDICTION = 1 << 18  # text that the completion will probably repeat
MAX_PATH = 4096  # a path, or the name of a document or a model
MAX_NAME = 64  # the name of a language or a trigger
MAX_WORD = 4096  # one text of a list
MAX_STOPS = 64  # stop texts, and any other list of texts
MAX_BRACKETS = 1024  # open brackets at a cursor
MAX_SNIPPETS = 64  # other files in one request
MAX_FILES, MAX_FILE_TEXT = 64, 512 * 1024  # lookup files per document, and their texts together
MAX_DOCUMENT = 2 * MAX_SIDE  # the part of a document in which an edit is looked for
MAX_PLACES, MAX_CHANGES, MAX_CHANGE, MAX_PROBLEMS = 3, 16, 16 * 1024, 64  # of one request for edits; a change's text
MAX_CHOICES = 16  # texts per prompt
MAX_LOGPROBS = 20  # most likely tokens at each position
MAX_COUNT = (1 << 31) - 1  # any other count, and the version of a document
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"  # pattern of a model's name, and of an owner's on the hub
HUB_ID = re.compile(f"{MODEL_NAME}/{MODEL_NAME}")
MAX_SEED = (1 << 63) - 1
