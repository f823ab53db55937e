"""Code that a scripted model edits, and what an editor answers to the daemon's own requests."""

URI = "file:///w/a.py"
CODE = "é = self\ny = self\n"
LINE_2 = {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 1}}


def answer(request):
    text = bytes(t for t in request.prompt if t < 256).decode()
    code = text.split("```python\n")[1].split("\n```")[0]
    return f"```python\n{code.replace('self', 'this')}\n```"


def instructions(door):
    texts = [bytes(t for t in one.prompt if t < 256).decode() for one in door.backend.seen]
    return [text.removeprefix("user: ").split("\n")[0] for text in texts]


class Editor:
    """Answers the daemon's `workspace/applyEdit`."""

    def __init__(self, client, applied=True):
        self.client = client
        self.edits = []
        self.applied = applied
        self.before = lambda: None
        self._receive = client._receive
        client._receive = self.receive

    def receive(self, message):
        if message.get("method") == "workspace/applyEdit":
            self.edits.append(message["params"]["edit"])
            self.before()
            result = {"applied": self.applied, "failureReason": "no"}
            self.client.send({"jsonrpc": "2.0", "id": message["id"], "result": result})
        else:
            self._receive(message)


class ProgressClient:
    """Collects ``$/progress`` by token, and lets tokens be created."""

    def __init__(self, client, refuses=False):
        self.client = client
        self.refuses = refuses
        self.created = []
        self._receive = client._receive
        client._receive = self.receive

    def receive(self, message):
        if message.get("method") == "window/workDoneProgress/create":
            self.created.append(message["params"]["token"])
            answer = {"error": {"code": 1, "message": "no"}} if self.refuses else {"result": None}
            self.client.send({"jsonrpc": "2.0", "id": message["id"], **answer})
        else:
            self._receive(message)

    def of(self, token):
        return [
            params["value"]
            for method, params in self.client.notifications
            if method == "$/progress" and params["token"] == token
        ]
