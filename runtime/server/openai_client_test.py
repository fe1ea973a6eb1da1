"""The openai package as an outside judge of the server's forms. Usage: openai_client_test.py ECHO_SERVER"""

import subprocess
import sys
import unittest

import openai

MESSAGES = [{"role": "user", "content": "hi"}]
ECHO = "user:hi\n"  # what the echo server's template renders, and so what it answers


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port = cls.server.stdout.readline().split()[1]
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=20)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stdin.close()
        cls.server.wait(timeout=20)
        cls.server.stdout.close()

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").object, "model")

    def test_chat(self):
        answer = self.client.chat.completions.create(
            model="tiny", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, seed=1, temperature=0.5
        )
        self.assertEqual([c.message.content for c in answer.choices], [ECHO, ECHO])
        self.assertEqual(answer.choices[1].finish_reason, "stop")
        self.assertEqual(answer.usage.completion_tokens, 2 * len(ECHO))
        first = answer.choices[0].logprobs.content[0]
        self.assertEqual((first.token, first.bytes, len(first.top_logprobs)), ("u", [117], 2))

    def test_chat_stream_with_usage(self):
        stream = self.client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        text, usage, finish = "", None, None
        for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
            usage = chunk.usage or usage
        self.assertEqual((text, finish, usage.prompt_tokens), (ECHO, "stop", len(ECHO)))

    def test_completions(self):
        answer = self.client.completions.create(
            model="tiny", prompt=[[104, 105], [120]], max_tokens=3, logprobs=1, extra_body={"return_token_ids": True}
        )
        self.assertEqual([c.text for c in answer.choices], ["hi", "x"])
        self.assertEqual(answer.choices[0].logprobs.tokens, ["h", "i"])
        self.assertEqual(answer.choices[0].token_ids, [104, 105])
        streamed = self.client.completions.create(model="tiny", prompt="abc", stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed), "abc")

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as unknown:
            self.client.chat.completions.create(model="other", messages=MESSAGES)
        self.assertEqual(unknown.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as bad:
            self.client.chat.completions.create(model="tiny", messages=MESSAGES, n=99)
        self.assertEqual(bad.exception.param, "n")


if __name__ == "__main__":
    SERVER = sys.argv.pop(1)
    unittest.main()
