"""Exports of what was trained; they need no PromptFed to be used."""
