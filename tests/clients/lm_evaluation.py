#!/usr/bin/env python3
"""lm-eval against the server, with tasks and data of our own: its sums of log probabilities, its greedy flags and its texts are what
`tetrad logits` and `tetrad run` give for the same token ids."""
import os
import pathlib
import subprocess
import tempfile

SCRATCH = tempfile.TemporaryDirectory()
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=SCRATCH.name, HF_HUB_DISABLE_TELEMETRY="1", TQDM_DISABLE="1")

import lm_eval  # noqa: E402  pylint: disable=wrong-import-position
from lm_eval.tasks import TaskManager  # noqa: E402  pylint: disable=wrong-import-position

from evaluation import log_softmax, own_logits  # noqa: E402  pylint: disable=wrong-import-position
from harness import ARGS, Server, main, user  # noqa: E402  pylint: disable=wrong-import-position

HERE = pathlib.Path(__file__).resolve().parent

TOLERANCE = 2e-6  # per token: both are float32 sums over 4,096 logits, measured at 2.3e-7
MODEL = "tetrad-tiny"


def evaluated(server, task, model="local-completions", path="/v1/completions", chat=False, gen_kwargs=None, **arguments):
    """The samples of a task as lm-eval logs them, and its figures."""
    found = lm_eval.simple_evaluate(
        model=model, tasks=[task], task_manager=TaskManager(include_path=str(HERE / "lm_evaluation"), include_defaults=False),
        model_args={"model": MODEL, "base_url": server.url + path, "max_length": 4096, "timeout": 120, "max_retries": 1, **arguments},
        log_samples=True, bootstrap_iters=0, apply_chat_template=chat, gen_kwargs=gen_kwargs)
    return found["samples"][task], found["results"][task]


def encode(server, text):
    return server.call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]


def truth_of(server, context, continuation):
    """Sum, greedy flag and number of tokens, of the ids that lm-eval makes: an empty context is the end token."""
    if context:
        before, ids = encode(server, context), encode(server, context + continuation)
    else:
        before = encode(server, server.call("GET", "/tokenizer_info")[1]["eos_token"])
        ids = before + encode(server, continuation)
    rows = [log_softmax(row) for row in own_logits(ids)]
    steps = [(rows[place - 1][ids[place]], max(rows[place - 1])) for place in range(len(before), len(ids))]
    return sum(value for value, _ in steps), all(value == best for value, best in steps), len(steps)


def test_log_likelihoods():
    with Server() as server:
        for arguments in ({"batch_size": 4}, {"num_concurrent": 3}):
            samples, results = evaluated(server, "tetrad_choice", **arguments)
            assert len(samples) == 5, samples
            right, flags = 0, []
            for sample in samples:
                sums = []
                for pair, (said, said_greedy) in zip(sample["arguments"], sample["filtered_resps"]):
                    total, greedy, tokens = truth_of(server, *pair)
                    assert abs(said - total) <= TOLERANCE * tokens and said_greedy == greedy, (pair, said, said_greedy, total, greedy)
                    flags.append(greedy)
                    sums.append(total)
                right += sums.index(max(sums)) == sample["doc"]["answer"]
            assert results["acc,none"] == right / len(samples) and set(flags) == {True, False}, (results, right, flags)
        server.expect_all_free()


def test_generation():
    with Server() as server:
        samples, results = evaluated(server, "tetrad_generate", num_concurrent=2)
        right = 0
        for sample in samples:
            prompt, said = sample["doc"]["question"], sample["filtered_resps"][0]
            stops = [word for stop in ("\n\n", "Q:") for word in ("--stop", stop)]
            run = subprocess.run([ARGS.tetrad, "run", "-m", ARGS.model, "--raw", "-p", prompt, "--temp", "0", "--max-tokens", "32", *stops],
                                 check=True, capture_output=True, text=True).stdout
            assert said == run.removesuffix("\n"), (prompt, said, run)
            right += said == sample["doc"]["answer"]
        assert len(samples) == 4 and results["exact_match,none"] == right / len(samples), results
        server.expect_all_free()


def test_chat():
    """Through the chat, where the server renders the template; without thinking, since a stop would end that."""
    with Server() as server:
        samples, _ = evaluated(server, "tetrad_generate", model="local-chat-completions", path="/v1/chat/completions", chat=True,
                               gen_kwargs={"reasoning_effort": "none"})
        for sample in samples:
            ask = {"messages": user(sample["doc"]["question"]), "max_tokens": 32, "temperature": 0, "stop": ["\n\n", "Q:"],
                   "reasoning_effort": "none"}
            answer = server.call("POST", "/v1/chat/completions", ask)[1]["choices"][0]["message"]["content"]
            assert sample["filtered_resps"][0] == answer, (sample, answer)
        assert any("42" in sample["filtered_resps"][0] for sample in samples), samples


if __name__ == "__main__":
    ARGS.tetrad, ARGS.model = os.path.abspath(ARGS.tetrad), os.path.abspath(ARGS.model)
    os.chdir(HERE / "lm_evaluation")  # the tasks name their data from here
    main("__main__")
