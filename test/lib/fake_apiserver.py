"""A small API server without a store, for clusters of a size that no real one is made for in a test.

It answers as kube-apiserver does: lists in pages whose tokens may expire, PartialObjectMetadata, watches with
bookmarks, 410, and the proxy to pods. Objects are texts made on demand, so that thousands of large ones cost no memory.
"""

import json
import queue
import re
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PARTIAL = "as=PartialObjectMetadata"


class Collection:
    """The objects of one path: `count` of them, and make(index, partial) gives the text of one."""

    def __init__(self, name, count, make):
        self.name, self.count, self.make = name, count, make
        self.changed = {}  # by index: a text that replaces make's, or None for a deleted object
        self.watchers = []

    def text(self, index, partial):
        return self.changed[index] if index in self.changed else self.make(index, partial)


class FakeApiServer:
    def __init__(self, kinds, proxied=None, expire_pages=0, delay=0.0):
        """kinds: Collection by path. proxied(pod) gives the text of a pod's page, or None: it cannot be reached.

        expire_pages: so many requests with a page token are answered with 410.
        delay: seconds before each proxied answer.
        """
        self.kinds, self.proxied, self.expire_pages, self.delay = kinds, proxied, expire_pages, delay
        self.lock = threading.Lock()
        self.version = 1000
        self.requests = []  # (path, query, Accept header)
        self.now, self.most = 0, 0  # proxied requests at work, and the most at once
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def log_message(self, *_):
                pass

            def do_GET(self):
                server.answer(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_):
                pass  # a client that ends is no error

        self.http = Server(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()

    def kubeconfig(self, path):
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [context]}
        path.write_text(json.dumps({**config, "clusters": [cluster], "users": [{"name": "u", "user": {"token": "x"}}]}))
        return path

    def asked(self, path, **query):
        """The requests for a path whose query has these values."""
        with self.lock:
            return [r for r in self.requests if r[0] == path and all(r[1].get(k) == v for k, v in query.items())]

    def change(self, path, index, text, event="MODIFIED"):
        """Changes an object, and tells the watches. DELETED: `text` is its last state."""
        kind = self.kinds[path]
        with self.lock:
            self.version += 1
            kind.changed[index] = None if event == "DELETED" else text
            for watcher in kind.watchers:
                watcher.put(f'{{"type":"{event}","object":{text}}}\n')

    def change_unseen(self, path, index, text):
        """Changes an object and breaks the watches off with 410, as after a long outage."""
        kind = self.kinds[path]
        with self.lock:
            self.version += 1
            kind.changed[index] = text
            for watcher in kind.watchers:
                watcher.put('{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n')
                watcher.put(None)

    def end_watches(self, path):
        """As the API server does after timeoutSeconds."""
        with self.lock:
            for watcher in self.kinds[path].watchers:
                watcher.put(None)

    # Each runs on the thread of a connection.

    def answer(self, http):
        url = urllib.parse.urlsplit(http.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        accept = http.headers.get("Accept", "")
        with self.lock:
            self.requests.append((url.path, query, accept))
        try:
            proxied = re.fullmatch(r"/api/v1/namespaces/[^/]+/pods/([^/:]+):(\d+)/proxy/status\.json", url.path)
            if proxied:
                self.send_proxied(http, proxied.group(1))
            elif url.path not in self.kinds:
                self.send(http, 404, '{"kind":"Status","code":404,"message":"the server has no such path"}')
            elif query.get("watch") in ("1", "true"):
                self.send_watch(http, self.kinds[url.path])
            else:
                self.send_list(http, self.kinds[url.path], query, PARTIAL in accept)
        except OSError:
            http.close_connection = True

    def send(self, http, code, text):
        data = text.encode()
        http.send_response_only(code)
        http.send_header("Content-Type", "application/json")
        http.send_header("Content-Length", str(len(data)))
        http.end_headers()
        http.wfile.write(data)

    def send_proxied(self, http, pod):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.delay)
        with self.lock:
            self.now -= 1
        text = self.proxied(pod)
        if text is None:
            why = "error trying to reach service: dial tcp 10.0.0.1:9402: connect: connection refused"
            self.send(http, 503, json.dumps({"kind": "Status", "code": 503, "message": why}))
        else:
            self.send(http, 200, text)

    def send_list(self, http, kind, query, partial):
        limit, begin = int(query.get("limit", 0)), int(query.get("continue", 0))
        if begin:
            with self.lock:
                expired = self.expire_pages > 0
                self.expire_pages -= expired
            if expired:
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "the token has expired"}
                return self.send(http, 410, json.dumps(status))
        end = min(kind.count, begin + limit) if limit else kind.count
        metadata = {"resourceVersion": str(self.version), **({"continue": str(end)} if end < kind.count else {})}
        self.begin_chunks(http)
        self.chunk(http, '{"kind":"List","apiVersion":"v1","metadata":' + json.dumps(metadata) + ',"items":[')
        parts, size, first = [], 0, True
        for index in range(begin, end):
            text = kind.text(index, partial)
            if text is None or not self.selected(text, query):
                continue
            parts.append(text if first else "," + text)
            first, size = False, size + len(text)
            if size > 1 << 18:
                self.chunk(http, "".join(parts))
                parts, size = [], 0
        self.chunk(http, "".join(parts) + "]}\n")
        self.chunk(http, "")

    @staticmethod
    def selected(text, query):
        """Whether the text has the labels. Field selectors are not looked at."""
        wanted = filter(None, query.get("labelSelector", "").split(","))
        return all(f'"{key}":"{value}"' in text for key, value in (pair.split("=", 1) for pair in wanted))

    def send_watch(self, http, kind):
        mine = queue.SimpleQueue()
        with self.lock:
            kind.watchers.append(mine)
        try:
            self.begin_chunks(http)
            while True:
                try:
                    line = mine.get(timeout=1)
                except queue.Empty:
                    metadata = {"metadata": {"resourceVersion": str(self.version)}}
                    line = json.dumps({"type": "BOOKMARK", "object": {"kind": kind.name, **metadata}}) + "\n"
                if line is None:
                    return self.chunk(http, "")
                self.chunk(http, line)
        finally:
            with self.lock:
                kind.watchers.remove(mine)

    def begin_chunks(self, http):
        http.send_response_only(200)
        http.send_header("Content-Type", "application/json")
        http.send_header("Transfer-Encoding", "chunked")
        http.end_headers()

    def chunk(self, http, text):
        data = text.encode()
        http.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        http.wfile.flush()
