"""The shell: the only room that parses arguments, prints and exits. No logic lives here."""
