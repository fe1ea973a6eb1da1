#!/usr/bin/env python3
"""Asks the question sets of tests/data through the HTTP server and compares the accuracies with the recorded ones.

    question_sets.py --runtime build/release/bin/runtime --model models/zoo/tiny-gdn --evals build/release/testdata/evals [--dtype bfloat16]

Starts `runtime serve`, asks every question greedily by /v1/chat/completions, sixteen at a time, and scores by the strict rule of
tools/golden/evaluate.py: the whole reply equals the expected text. Exit code 1 if a set lies further from the record than float32's 1 point,
or bf16's 3 points for recall and 1.5 elsewhere. With --limit N only the first N questions of each set are asked; then there may be at most as many
wrong ones as the record and the tolerance allow in the whole set. Standard library only.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import subprocess
import sys
import threading
import time

# Accuracies in percent of the independent implementation (tests/data/README.md), and the tokens a reply may take.
RECORDED = {
    "tiny-gdn": {
        "float32": {"arithmetic": 85.5, "copy": 98.5, "facts": 100.0, "words": 99.2, "names": 100.0, "recall_512": 65.0, "recall_2k": 28.0,
                    "recall_4k": 10.0},
        "bfloat16": {"arithmetic": 85.5, "copy": 98.5, "facts": 100.0, "words": 99.2, "names": 100.0, "recall_512": 65.0, "recall_2k": 27.0,
                     "recall_4k": 10.0},
    },
    "tiny-kda": {
        "float32": {"arithmetic": 84.0, "copy": 98.0, "facts": 100.0, "words": 100.0, "names": 100.0, "recall_512": 2.0, "recall_2k": 0.0,
                    "recall_4k": 1.0},
        "bfloat16": {"arithmetic": 83.5, "copy": 98.0, "facts": 100.0, "words": 100.0, "names": 100.0, "recall_512": 1.0, "recall_2k": 0.0,
                     "recall_4k": 1.0},
    },
}
MAX_TOKENS = {"arithmetic": 24, "copy": 48, "facts": 32, "words": 80, "names": 24, "recall_512": 24, "recall_2k": 24, "recall_4k": 24}
PARALLEL = 16
START_SECONDS = 120
ROUNDING = 0.05  # the record has one decimal


def tolerance(dtype, name):
    if dtype == "float32":
        return 1.0
    return 3.0 if name.startswith("recall") else 1.5


class Server:
    """`runtime serve` on a free port; a context manager that ends it by SIGTERM."""

    def __init__(self, args):
        overrides = {"model.path": args.model, "model.compute_dtype": args.dtype, "model.max_context": 8192, "server.port": 0, "log.level": "warn",
                     "engine.max_sequences": PARALLEL, **dict(pair.split("=", 1) for pair in args.set)}
        command = [args.runtime, "serve"]
        for key, value in overrides.items():
            command += ["--set", f"{key}={value}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = None
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.port = int(line.rsplit(":", 1)[1])
            if line.startswith("ready: "):
                self.ready.set()

    def __enter__(self):
        end = time.monotonic() + START_SECONDS
        while not self.ready.wait(0.1):
            if self.process.poll() is not None:
                sys.exit(f"the server ended with code {self.process.returncode} before it was ready")
            if time.monotonic() > end:
                self.process.kill()
                sys.exit(f"the server was not ready after {START_SECONDS} s")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        if self.process.wait(60) != 0:
            sys.exit(f"the server ended with code {self.process.returncode} after SIGTERM")

    def ask(self, messages, max_tokens):
        body = json.dumps({"messages": messages, "temperature": 0, "max_tokens": max_tokens})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {answer}")
        return answer


def run_set(server, name, rows):
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        answers = list(pool.map(lambda row: server.ask(row["messages"], MAX_TOKENS[name]), rows))
    wrong = []
    for row, answer in zip(rows, answers):
        text = answer["choices"][0]["message"]["content"]
        if text.strip() != row["expected"].strip():
            wrong.append({"id": row["id"], "expected": row["expected"], "found": text})
    return wrong, sum(a["usage"]["prompt_tokens"] for a in answers)


def verdict(num_wrong, num_asked, num_rows, recorded, allowed):
    """Whether the set is close enough to the record, in words for the table."""
    if num_asked == num_rows:
        found = 100 * (num_rows - num_wrong) / num_rows
        return abs(found - recorded) <= allowed + ROUNDING, f"{found:5.1f} %, recorded {recorded:.1f}, allowed {allowed:.1f}"
    most = round((100 - recorded + allowed) / 100 * num_rows)
    return num_wrong <= most, f"{num_wrong} wrong, the whole set allows {most}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--evals", required=True)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--sets", default=",".join(MAX_TOKENS))
    parser.add_argument("--limit", type=int, default=0, help="questions of each set; 0 = all")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the server")
    parser.add_argument("--out", help="write the results and every wrong reply as JSON")
    args = parser.parse_args()
    model = os.path.basename(os.path.normpath(args.model))
    if model not in RECORDED:
        sys.exit(f"no accuracies are recorded for {model}; known: {', '.join(RECORDED)}")
    record = RECORDED[model][args.dtype]
    results, failed = {}, []
    with Server(args) as server:
        for name in args.sets.split(","):
            with open(os.path.join(args.evals, name + ".jsonl"), encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines]
            asked = rows[:args.limit] if args.limit else rows
            begin = time.monotonic()
            wrong, prompt_tokens = run_set(server, name, asked)
            ok, words = verdict(len(wrong), len(asked), len(rows), record[name], tolerance(args.dtype, name))
            if not ok:
                failed.append(name)
            results[name] = {"asked": len(asked), "wrong": wrong}
            print(f"{args.dtype:8} {name:10} {len(asked) - len(wrong):3}/{len(asked)}  {words}  {'ok' if ok else 'FAILED'}  "
                  f"({prompt_tokens} prompt tokens, {time.monotonic() - begin:.1f} s)", flush=True)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as out:
            json.dump({"dtype": args.dtype, "sets": results}, out, indent=1, ensure_ascii=False)
    if failed:
        sys.exit("outside the tolerance: " + ", ".join(failed))


if __name__ == "__main__":
    main()
