"""Six calls of AWS over HTTP, with the life that training jobs really have: what moto's have not.

CreateTrainingJob, DescribeTrainingJob, StopTrainingJob, DescribeLogStreams, GetLogEvents and PutObject (DeleteObject
with it), as boto3 sends them. A job moves only when the test says so. Errors have the service's codes and statuses:
a missing job is a ValidationException, a name in use ResourceInUse, a rush of calls ThrottlingException.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ARN = "arn:aws:sagemaker:eu-west-1:123456789012:training-job/"
FINAL = ("Completed", "Failed", "Stopped")


class AwsError(Exception):
    """An error as a service says it: code, message, HTTP status."""

    def __init__(self, code, message, status=400):
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass
class Job:
    request: dict
    status: str = "InProgress"
    secondary: str = "Starting"
    failure: str | None = None
    transitions: list = field(default_factory=list)
    streams: dict = field(default_factory=dict)

    def __post_init__(self):
        self.move("InProgress", "Starting", "Starting the training job")

    @property
    def name(self):
        return self.request["TrainingJobName"]

    def move(self, status, secondary, message="", failure=None):
        now = time.time()
        if self.transitions:
            self.transitions[-1]["EndTime"] = now
        self.transitions.append({"Status": secondary, "StartTime": now, "StatusMessage": message})
        self.status, self.secondary, self.failure = status, secondary, failure or self.failure

    def described(self):
        """Return what DescribeTrainingJob says: the request and where the job is; no tags."""
        shown = {key: value for key, value in self.request.items() if key != "Tags"}
        shown |= {
            "TrainingJobArn": ARN + self.name,
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.secondary,
            "SecondaryStatusTransitions": self.transitions,
            "CreationTime": self.transitions[0]["StartTime"],
            "ModelArtifacts": {"S3ModelArtifacts": f"{self.request['OutputDataConfig']['S3OutputPath']}/{self.name}"},
        }
        return shown | ({"FailureReason": self.failure} if self.failure else {})


class Aws:
    """The services. `errors` are given in place of answers, the first first; `lost` answers are cut off.

    A request waits for the event that `held` has for its operation, whether or not its sender still does; it is one
    of the `unanswered` until then.
    """

    def __init__(self):
        self.jobs, self.objects, self.calls = {}, {}, []
        self.errors = {}
        self.lost, self.held, self.holding, self.unanswered = {}, {}, set(), []
        self.stops_slowly = False
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"aws": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, operation, body):
        with self.lock:
            self.calls.append(operation)
            if self.errors.get(operation):
                raise self.errors[operation].pop(0)
            return getattr(self, f"on_{operation}")(body)

    def job(self, body):
        if body["TrainingJobName"] not in self.jobs:
            raise AwsError("ValidationException", "Requested resource not found.")
        return self.jobs[body["TrainingJobName"]]

    def on_CreateTrainingJob(self, body):
        if body["TrainingJobName"] in self.jobs:
            raise AwsError("ResourceInUse", "Training job names must be unique within an AWS account and region")
        self.jobs[body["TrainingJobName"]] = Job(body)
        return {"TrainingJobArn": ARN + body["TrainingJobName"]}

    def on_DescribeTrainingJob(self, body):
        return self.job(body).described()

    def on_StopTrainingJob(self, body):
        job = self.job(body)
        if job.status in FINAL:
            message = f"The request was rejected because the training job is in status {job.status}."
            raise AwsError("ValidationException", message)
        if job.status == "InProgress":
            job.move("Stopping", "Stopping", "Stopping the training job")
            if not self.stops_slowly:
                threading.Timer(0.1, job.move, ("Stopped", "Stopped", "Training job stopped")).start()
        return {}

    def on_DescribeLogStreams(self, body):
        assert body["logGroupName"] == "/aws/sagemaker/TrainingJobs"
        prefix = body["logStreamNamePrefix"]
        names = sorted(name for job in self.jobs.values() for name in job.streams if name.startswith(prefix))
        if not names:
            raise AwsError("ResourceNotFoundException", "The specified log group does not exist.")
        start = int(body.get("nextToken", 0))
        page = {"logStreams": [{"logStreamName": name} for name in names[start : start + 1]]}
        return page | ({"nextToken": str(start + 1)} if start + 1 < len(names) else {})

    def on_GetLogEvents(self, body):
        assert body["startFromHead"] is True
        job = self.jobs[body["logStreamName"].partition("/")[0]]
        lines = job.streams[body["logStreamName"]]
        start = int(body.get("nextToken", "f/0").removeprefix("f/"))
        page = lines[start : start + 7]
        events = [{"timestamp": 1, "message": line} for line in page]
        return {"events": events, "nextForwardToken": f"f/{start + len(page)}", "nextBackwardToken": "b/0"}


class _Handler(BaseHTTPRequestHandler):
    aws: Aws
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        self._reply(operation, json.loads(self._body() or b"{}"))

    def do_PUT(self):
        self._store("PutObject")

    def do_DELETE(self):
        self._store("DeleteObject")

    def _store(self, operation):
        body = self._body()
        with self.aws.lock:
            self.aws.calls.append(operation)
            if self.aws.errors.get(operation):
                error = self.aws.errors[operation].pop(0)
                text = f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
                self._send(error.status, text.encode(), "application/xml")
                return
            if operation == "PutObject":
                self.aws.objects[self.path] = body
            else:
                self.aws.objects.pop(self.path, None)
        self._send(200 if operation == "PutObject" else 204, b"", "application/xml")

    def _body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        else:
            raise AssertionError("boto3 sends lengths")
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return raw
        found, rest = b"", raw
        while rest:
            head, _, rest = rest.partition(b"\r\n")
            size = int(head.partition(b";")[0], 16)
            if not size:
                return found
            found, rest = found + rest[:size], rest[size + 2 :]
        return found

    def _reply(self, operation, body):
        self.aws.unanswered.append(operation)
        if event := self.aws.held.get(operation):
            self.aws.holding.add(operation)
            event.wait()
        try:
            answer, status = self.aws.answer(operation, body), 200
        except AwsError as error:
            answer, status = {"__type": error.code, "message": error.message}, error.status
        finally:
            self.aws.unanswered.remove(operation)
        if self.aws.lost.get(operation):
            self.aws.lost[operation] -= 1
            self.close_connection = True
            return  # done, and never told
        self._send(status, json.dumps(answer).encode(), "application/x-amz-json-1.1")

    def _send(self, status, content, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass
