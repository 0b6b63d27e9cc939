#!/usr/bin/env python3
"""What evaluation harnesses ask, as they ask it: scores of given continuations over lists of token ids, equal to `tetrad logits`, and the
reading of the tokenizer over HTTP. No package needed."""
import array
import json
import math
import pathlib
import random
import struct
import subprocess
import tempfile

from harness import ARGS, Server, main

TEXT = "/v1/completions"
PAIRS = [("What is 12 + 30?", " 12 + 30 = 42"), ("Who are you?", " I am a small model."), ("The cat", " sat on the mat."), ("A", "b")]


def own_logits(ids):
    """Rows of logits by the engine itself."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "logits.safetensors"
        subprocess.run([ARGS.tetrad, "logits", "-m", ARGS.model, "--ids", ",".join(map(str, ids)), "--out", str(file)], check=True,
                       capture_output=True)
        data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])["logits"]
    begin, end = header["data_offsets"]
    values = array.array("f", data[8 + size + begin:8 + size + end])
    rows, vocabulary = header["shape"]
    return [values[row * vocabulary:(row + 1) * vocabulary] for row in range(rows)]


def log_softmax(row):
    best = max(row)
    total = best + math.log(math.fsum(math.exp(value - best) for value in row))
    return [value - total for value in row]


def test_log_likelihoods():
    """As lm-eval's local-completions: a list of lists of ids, echoed, with the best token of every place."""
    with Server() as server:

        def encode(text):
            return server.call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]

        contexts = [encode(context) for context, _ in PAIRS]
        wholes = [context + encode(continuation) for context, (_, continuation) in zip(contexts, PAIRS)]
        body = {"model": "tetrad-tiny", "prompt": wholes, "echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234}
        response, answer = server.call("POST", TEXT, body)
        assert response.status == 200, answer
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(wholes))), answer
        for ids, context, choice in zip(wholes, contexts, answer["choices"]):
            logprobs = choice["logprobs"]
            values, best = logprobs["token_logprobs"], logprobs["top_logprobs"]
            assert len(values) == len(best) == len(logprobs["tokens"]) == len(ids) + 1 and values[0] is None, logprobs
            expected = [log_softmax(row) for row in own_logits(ids)]
            for place in range(1, len(ids)):
                truth = expected[place - 1]
                assert abs(values[place] - truth[ids[place]]) < 2e-5, (place, values[place], truth[ids[place]])
                assert abs(max(best[place].values()) - max(truth)) < 2e-5, (place, best[place])
                # Greedy or not is read by comparing for equality.
                assert (values[place] == max(best[place].values())) == (truth[ids[place]] == max(truth)), (place, best[place])
            total = sum(values[len(context):-1])
            truth = sum(expected[place - 1][ids[place]] for place in range(len(context), len(ids)))
            assert abs(total - truth) < 1e-4, (total, truth)
        again = server.call("POST", TEXT, body)[1]
        assert again["choices"] == answer["choices"]
        long = [random.Random(3).randrange(256, 1000) for _ in range(700)]  # more than one step
        scores = server.call("POST", TEXT, {**body, "prompt": [long]})[1]["choices"][0]["logprobs"]["token_logprobs"]
        expected = [log_softmax(row) for row in own_logits(long)]
        assert all(abs(scores[place] - expected[place - 1][long[place]]) < 2e-5 for place in range(1, len(long)))


def test_generation():
    """As its generate_until tasks: greedy text up to one of the stops."""
    with Server() as server:
        body = {"model": "tetrad-tiny", "prompt": "What is", "max_tokens": 24, "temperature": 0, "stop": ["\n\n", "<|im_end|>"], "seed": 1234}
        answer = server.call("POST", TEXT, body)[1]["choices"][0]["text"]
        run = subprocess.run([ARGS.tetrad, "run", "-m", ARGS.model, "--raw", "-p", "What is", "--temp", "0", "--max-tokens", "24",
                              "--stop", "\n\n"], check=True, capture_output=True, text=True).stdout
        assert answer.strip() == run.strip(), (answer, run)
        chat = {"model": "tetrad-tiny", "messages": [{"type": "text", "role": "user", "content": "What is 12 + 30?"}], "max_tokens": 100,
                "temperature": 0, "stop": ["Q:"], "seed": 1234}
        assert "42" in server.call("POST", "/v1/chat/completions", chat)[1]["choices"][0]["message"]["content"]


def test_tokenizer_from_outside():
    with Server() as server:
        info = server.call("GET", "/tokenizer_info")[1]
        assert info["eos_token"] == "<|im_end|>" or info["eos_token"], info
        ids = server.call("POST", "/tokenize", {"prompt": "Who are you? \u20ac", "add_special_tokens": False})[1]
        assert ids["count"] == len(ids["tokens"]), ids
        assert server.call("POST", "/detokenize", {"tokens": ids["tokens"]})[1]["prompt"] == "Who are you? \u20ac"


if __name__ == "__main__":
    assert ARGS
    main("__main__")
