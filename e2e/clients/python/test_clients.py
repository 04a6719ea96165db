"""Clients from PyPI, unmodified, against running engines: PAGODA_URL and PAGODA_MODEL say where and what,
PAGODA_EMBEDDINGS_URL and PAGODA_EMBEDDINGS_MODEL where there is a model that makes embeddings."""

import json
import os
import unittest

import openai

URL = os.environ["PAGODA_URL"] + "/v1"
MODEL = os.environ["PAGODA_MODEL"]
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 32}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city", "parameters": CITY},
}


class OpenAi(unittest.TestCase):
    client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)

    def test_a_conversation_is_answered_and_counted(self):
        answer = self.client.chat.completions.create(**GREEDY)
        self.assertIn("Paris", answer.choices[0].message.content)
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, 0)

    def test_a_stream_is_the_same_answer_in_chunks_with_its_usage_at_the_end(self):
        whole = self.client.chat.completions.create(**GREEDY)
        text, usage = "", None
        for chunk in self.client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_a_call_that_must_be_is_made_whole_and_streamed(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice, reason in (("required", "tool_calls"), (named, "stop")):
            asked = {**GREEDY, "max_tokens": 64, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
            answer = self.client.chat.completions.create(**asked).choices[0]
            call = answer.message.tool_calls[0]
            self.assertEqual((answer.finish_reason, call.function.name), (reason, "get_weather"))
            self.assertIn(json.loads(call.function.arguments)["city"], ("Paris", "Rome"))
            arguments = ""
            for chunk in self.client.chat.completions.create(**asked, stream=True):
                for part in chunk.choices[0].delta.tool_calls or []:
                    arguments += part.function.arguments or ""
            self.assertEqual(arguments, call.function.arguments)

    def test_a_conversation_goes_on_after_a_call(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        messages = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        ]
        answer = self.client.chat.completions.create(**{**GREEDY, "messages": messages}, tools=[WEATHER])
        self.assertIsNotNone(answer.choices[0].finish_reason)

    def test_pydantic_models_are_answered_in(self):
        from pydantic import BaseModel, Field

        class Capital(BaseModel):
            capital: str = Field(max_length=20)
            population: int = Field(ge=0, le=100_000_000)

        answer = self.client.chat.completions.parse(**{**GREEDY, "max_tokens": 128}, response_format=Capital)
        self.assertIsInstance(answer.choices[0].message.parsed, Capital)

    def test_log_probabilities_come_with_every_token_whole_and_streamed(self):
        asked = {**GREEDY, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
        whole = self.client.chat.completions.create(**asked).choices[0]
        tokens = whole.logprobs.content
        self.assertEqual("".join(token.token for token in tokens), whole.message.content)
        self.assertTrue(all(len(token.top_logprobs) == 3 for token in tokens))
        streamed = []
        for chunk in self.client.chat.completions.create(**asked, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content or []
        self.assertEqual(streamed, tokens)

    def test_a_prompt_is_scored_by_echoing_it(self):
        answer = self.client.completions.create(model=MODEL, prompt="The capital of France is Paris", max_tokens=0, echo=True, logprobs=1)
        lists = answer.choices[0].logprobs
        self.assertIsNone(lists.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in lists.token_logprobs[1:]))
        self.assertEqual("".join(lists.tokens), answer.choices[0].text)

    def test_several_choices_of_one_seed_repeat(self):
        asked = {**GREEDY, "temperature": 1.2, "seed": 5, "n": 2, "max_tokens": 8}
        first = self.client.chat.completions.create(**asked)
        second = self.client.chat.completions.create(**asked)
        texts = [[choice.message.content for choice in answer.choices] for answer in (first, second)]
        self.assertEqual(texts[0], texts[1])

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(**{**GREEDY, "model": "nobody"})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(**{**GREEDY, "temperature": 9})
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.embeddings.create(model=MODEL, input="x")
        self.assertEqual(caught.exception.code, "unsupported_model")

    def test_models_are_listed(self):
        self.assertIn(MODEL, [entry.id for entry in self.client.models.list()])


@unittest.skipUnless("PAGODA_EMBEDDINGS_URL" in os.environ, "no engine with a model that makes embeddings was named")
class Embeddings(unittest.TestCase):
    """Vectors of length 1, whoever asks, the same for the same text."""

    TEXTS = ["abc", "hello", "abc"]

    def setUp(self):
        self.url = os.environ["PAGODA_EMBEDDINGS_URL"] + "/v1"
        self.model = os.environ["PAGODA_EMBEDDINGS_MODEL"]

    def check(self, vectors):
        self.assertEqual(len(vectors), 3)
        for vector in vectors:
            self.assertAlmostEqual(sum(value * value for value in vector), 1.0, places=5)
        self.assertEqual(vectors[0], vectors[2])
        self.assertNotEqual(vectors[0], vectors[1])

    def test_of_openai_as_bytes_and_as_numbers(self):
        client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)
        of_bytes = client.embeddings.create(model=self.model, input=self.TEXTS)
        self.assertEqual(of_bytes.usage.prompt_tokens, 11)
        vectors = [entry.embedding for entry in of_bytes.data]
        self.check(vectors)
        of_numbers = client.embeddings.create(model=self.model, input=self.TEXTS, encoding_format="float")
        for a, b in zip(vectors, [entry.embedding for entry in of_numbers.data]):
            self.assertTrue(all(abs(x - y) < 1e-6 for x, y in zip(a, b)))
        with self.assertRaises(openai.BadRequestError) as caught:
            client.embeddings.create(model=self.model, input="abc", dimensions=3)
        self.assertEqual(caught.exception.param, "dimensions")

    def test_of_langchain(self):
        from langchain_openai import OpenAIEmbeddings

        # It would send tokens of OpenAI's own models otherwise.
        made = OpenAIEmbeddings(base_url=self.url, api_key="none", model=self.model, check_embedding_ctx_length=False, max_retries=0)
        self.check(made.embed_documents(self.TEXTS))
        self.assertEqual(made.embed_query("abc"), made.embed_documents(self.TEXTS)[0])

    def test_of_litellm(self):
        import litellm

        asked = {"model": f"openai/{self.model}", "input": self.TEXTS, "api_base": self.url, "api_key": "none", "encoding_format": "float"}
        self.check([entry["embedding"] for entry in litellm.embedding(**asked).data])


class LangChain(unittest.TestCase):
    def setUp(self):
        from langchain_openai import ChatOpenAI

        self.chat = ChatOpenAI(base_url=URL, api_key="none", model=MODEL, temperature=0, max_tokens=96, max_retries=0)

    def test_invoke_and_stream(self):
        answer = self.chat.invoke("What is the capital of France?")
        self.assertIn("Paris", answer.content)
        streamed = "".join(chunk.content for chunk in self.chat.stream("What is the capital of France?"))
        self.assertEqual(streamed, answer.content)

    def test_a_bound_tool_is_called(self):
        from langchain_core.tools import tool

        @tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        answer = self.chat.bind_tools([add], tool_choice="add").invoke("What is 2 + 3?")
        self.assertEqual(answer.tool_calls[0]["name"], "add")
        self.assertEqual(set(answer.tool_calls[0]["args"]), {"a", "b"})

    def test_structured_output(self):
        from pydantic import BaseModel

        class Answer(BaseModel):
            yes: bool

        for method in ("json_schema", "function_calling"):
            structured = self.chat.with_structured_output(Answer, method=method)
            self.assertIsInstance(structured.invoke("Is Paris in France?"), Answer)


class LiteLlm(unittest.TestCase):
    def setUp(self):
        import litellm

        litellm.telemetry = False
        self.litellm = litellm
        self.asked = {"model": f"openai/{MODEL}", "messages": MESSAGES, "temperature": 0, "max_tokens": 32, "api_base": URL, "api_key": "none"}

    def test_whole_and_streamed(self):
        answer = self.litellm.completion(**self.asked)
        text = answer.choices[0].message.content
        self.assertIn("Paris", text)
        chunks = self.litellm.completion(**self.asked, stream=True)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), text)

    def test_a_call_that_must_be(self):
        answer = self.litellm.completion(**{**self.asked, "max_tokens": 64}, tools=[WEATHER], tool_choice="required")
        self.assertEqual(answer.choices[0].message.tool_calls[0].function.name, "get_weather")

    def test_errors_are_its_own(self):
        with self.assertRaises(self.litellm.BadRequestError):
            self.litellm.completion(**{**self.asked, "temperature": 9}, num_retries=0)
        with self.assertRaises(self.litellm.NotFoundError):
            self.litellm.completion(**{**self.asked, "model": "openai/nobody"}, num_retries=0)


class Llm(unittest.TestCase):
    """The `llm` program, told of the engine as its documentation says: by `extra-openai-models.yaml`."""

    def setUp(self):
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        path = os.path.join(self.folder.name, "extra-openai-models.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump([{"model_id": "pagoda", "model_name": MODEL, "api_base": URL, "supports_schema": True, "supports_tools": True}], file)
        os.environ["LLM_USER_PATH"] = self.folder.name

    def run_llm(self, *arguments):
        import subprocess
        import sys

        done = subprocess.run(
            [sys.executable, "-m", "llm", *arguments], capture_output=True, text=True, check=False, env={**os.environ, "OPENAI_API_KEY": "none"}
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_prompt_is_answered_streamed_and_not(self):
        asked = ["-m", "pagoda", "-o", "temperature", "0", "-o", "max_tokens", "32", "What is the capital of France?"]
        streamed = self.run_llm(*asked)
        self.assertIn("Paris", streamed)
        self.assertEqual(self.run_llm(*asked, "--no-stream"), streamed)

    def test_a_schema_is_kept_to(self):
        text = self.run_llm("-m", "pagoda", "-o", "temperature", "0", "--schema", "yes bool", "Is Paris in France?")
        self.assertIsInstance(json.loads(text)["yes"], bool)


if __name__ == "__main__":
    unittest.main(verbosity=2)
