#!/usr/bin/env python3
"""Ctrl-C in `tetrad chat` stops the answer and not the program: tests/e2e/chat_interrupt.py TETRAD MODEL_DIR"""
import json
import os
import pty
import select
import sys
import time

ENDLESS = 3000  # tokens, more than 6,000 characters, unless the answer is stopped
MOST_AFTER = 2000  # characters that may still come


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, arguments):
        self.process, self.fd = pty.fork()
        if self.process == 0:
            os.execv(arguments[0], arguments)
        self.text = ""

    def read_until(self, done, what, seconds=120):
        end = time.monotonic() + seconds
        while not done(self.text):
            if time.monotonic() > end:
                sys.exit(f"chat_interrupt: {what}: not within {seconds} s; the terminal shows:\n{self.text[-2000:]}")
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:  # the program has ended
                    if not done(self.text):
                        sys.exit(f"chat_interrupt: {what}: the program ended; the terminal shows:\n{self.text[-2000:]}")

    def send(self, text):
        self.text = ""
        os.write(self.fd, text.encode())


def main():
    tetrad, model = sys.argv[1:]
    with open(os.path.join(model, "generation_config.json"), encoding="utf-8") as file:
        stop_ids = json.load(file)["eos_token_id"]  # without them an answer goes on to its limit
    chat = Terminal([tetrad, "chat", "-m", model, "--temp", "0", "--no-think", "-n", str(ENDLESS)] +
                    [word for stop in stop_ids for word in ("--logit-bias", f"{stop}:-100")])
    chat.read_until(lambda text: text.rstrip(" ").endswith(">"), "the first prompt")
    chat.send("What is a cat?\n")
    chat.read_until(lambda text: len(text) > 200, "an answer that goes on")
    chat.send("\x03")
    chat.read_until(lambda text: text.rstrip(" ").endswith(">"), "a prompt after Ctrl-C", 30)
    more = len(chat.text)
    if more > MOST_AFTER:
        sys.exit(f"chat_interrupt: {more} characters came after Ctrl-C: the answer was not stopped")
    chat.send("Who are you?\n")
    chat.read_until(lambda text: len(text) > 100, "an answer to the next question")
    chat.send("\x03")
    chat.read_until(lambda text: text.rstrip(" ").endswith(">"), "a prompt after the second Ctrl-C", 30)
    chat.send("\x04")
    _, status = os.waitpid(chat.process, 0)
    if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != 0:
        sys.exit(f"chat_interrupt: the program ended with status {status}")
    print(f"an answer stopped {more} characters after Ctrl-C, the next one began, the program ended by itself")


if __name__ == "__main__":
    main()
