"""Renders chat templates for the runtime. Started as `python3 -I -c <this text>` with a socket as fd 0.

A frame is a 4-byte little-endian length and that many bytes of JSON, both ways. The child first says
{"ok": true, "python": ..., "jinja2": ...} or {"error": "unavailable", "message": ...}, then answers each request:
  {"op": "limits", "memory_bytes": N, "cpu_seconds": N}      -> {"ok": true}
  {"op": "load", "templates": {name: source}}                -> {"ok": true}
  {"op": "render", "name": ..., "context": {...}, "marks": text} -> {"text": ...}
An error is {"error": kind, "message": text}; kind: "raised" (the template called raise_exception), "template" (it does
not compile or fails), "memory". The text never holds a traceback.

The environment is the one that published templates are tested with (transformers, chat_template_utils.py): immutable
sandbox, trim_blocks, lstrip_blocks, loop controls, the generation tag, tojson as json.dumps(ensure_ascii=False),
raise_exception and strftime_now.
"""

import datetime
import json
import os
import resource
import struct
import sys

SOCKET = 0


def read_exactly(size):
    parts = []
    while size > 0:
        part = os.read(SOCKET, min(size, 1 << 20))
        if not part:
            sys.exit(0)  # the runtime has gone or has let go of us
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive():
    (size,) = struct.unpack("<I", read_exactly(4))
    return read_exactly(size)


def encode(reply):
    return json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace")


def send(body):
    data = memoryview(struct.pack("<I", len(body)) + body)
    while data:
        data = data[os.write(SOCKET, data):]


try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except Exception as error:
    send(encode({"error": "unavailable", "message": str(error)}))
    sys.exit(0)


class Raised(jinja2.TemplateError):
    pass


class GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks what the assistant wrote, for training; rendering only needs its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body_of"), [], [], body).set_lineno(line)

    def body_of(self, caller):
        return caller()


def raise_exception(message):
    raise Raised(str(message))


def strftime_now(pattern):
    return datetime.datetime.now().strftime(pattern)


class Renderer:
    def __init__(self):
        self.marks = ""
        self.templates = {}
        self.environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols])
        self.environment.filters["tojson"] = self.tojson
        self.environment.globals["raise_exception"] = raise_exception
        self.environment.globals["strftime_now"] = strftime_now

    def tojson(self, value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        if ensure_ascii:  # marks must reach the runtime as they are, not as \u escapes
            for mark in self.marks:
                text = text.replace(json.dumps(mark)[1:-1], mark)
        return text

    def load(self, request):
        self.templates = {name: self.environment.from_string(source) for name, source in request["templates"].items()}
        return {"ok": True}

    def render(self, request):
        self.marks = request["marks"]
        text = self.templates[request["name"]].render(**request["context"])
        text.encode("utf-8")  # a lone surrogate made by the template must fail here, as an error of the template
        return {"text": text}


def set_limit(kind, value):
    try:
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
    except (ValueError, OSError):
        pass  # an outer limit is already tighter


def set_limits(request):
    set_limit(resource.RLIMIT_AS, request["memory_bytes"])
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        set_limit(kind, 0)
    return {"ok": True}


def allow_cpu_seconds(seconds):
    """The runtime's time-out kills a runaway template; this ends it even when the runtime itself was killed."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    set_limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + seconds)


def describe(error):
    if isinstance(error, jinja2.TemplateSyntaxError):
        return "line %d: %s" % (error.lineno, error.message)
    return "%s: %s" % (type(error).__name__, error)


class Server:
    def __init__(self):
        self.renderer = Renderer()
        self.cpu_seconds = 10

    def handle(self, body):
        request = json.loads(body)
        if request["op"] == "limits":
            self.cpu_seconds = request["cpu_seconds"]
            return set_limits(request)
        allow_cpu_seconds(self.cpu_seconds)
        return self.renderer.load(request) if request["op"] == "load" else self.renderer.render(request)

    def answer(self, body):
        try:
            return encode(self.handle(body))
        except Raised as error:
            return encode({"error": "raised", "message": str(error)})
        except MemoryError:
            return b'{"error": "memory"}'
        except Exception as error:
            return encode({"error": "template", "message": describe(error)})


def main():
    send(encode({"ok": True, "python": sys.version.split()[0], "jinja2": jinja2.__version__}))
    server = Server()
    while True:
        send(server.answer(receive()))


main()
