"""The demo room: a tiny tokenizer and checkpoint, logs made for them, and a folder to try them in.

The files beside this module are the package's own data; `fixtures/make.py` makes them.
"""
