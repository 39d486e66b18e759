// Polywire's client: UMQ over WebSocket, for browsers, and with node.js for Node. What is exported: polywire.d.ts.

const WINDOW = 512; // requests in flight; by default the hub allows a connection 1000
const FRAME = /^(?:A([0-9A-Z]*):)?([A-Z!-])([0-9A-Z]*):(.*)$/s;
const FAILURE = /^([45]\d\d) (?:([\w.~/+%-]*)(?: ?\(retry after (\d{1,10}) ms\))?: )?(.*)$/s;
const STRING = '"(?:[^"\\\\]|\\\\.)*"';
const BEFORE_BODY = RegExp(
  `^(\\[${STRING},|{"channel":${STRING},"headers":{(${STRING}:(${STRING}|[^",}]+),?)*},"body":)`,
);
// What a hub reports itself (UMQ-96), with the code and tag of an error that has no others.
const MEANINGS = [
  [],
  ["Rejected", 403, "rejected"],
  ["Callback not found", 404, "no-callback"],
  ["Protocol error", 500, "protocol-error"],
  ["Unsupported command", 501, "unsupported-command"],
  ["Unsupported version", 505, "unsupported-version"],
  ["No RPC server here", 404, "no-service"],
  ["No route to method", 404, "no-method"],
  ["Temporarily unavailable", 503, "unavailable"],
  ["Limit exceeded", 429, "limit"],
  ["Shutting down", 503, "draining"],
  ["Bad request", 400, "bad-request"],
  ["Forbidden", 403, "forbidden"],
];
const encoder = new TextEncoder();
const decoder = new TextDecoder();
const base36 = (number) => number.toString(36).toUpperCase();
const ignore = () => {};
const isText = (value) => typeof value == "string";
const isBinary = (value) => value?.byteLength != null;

export class PolywireError extends Error {
  constructor(code, tag = "", text = "", more) {
    super(`${code}${tag && " " + tag}: ${text}`);
    Object.assign(this, { name: "PolywireError", code, tag, text }, more);
  }
}

export class Reply {
  constructor(body, attachments = []) {
    Object.assign(this, { body, attachments });
  }
}

class Message {
  #body;

  constructor(body, attachments, fields) {
    this.#body = body;
    Object.assign(this, { attachments }, fields);
  }

  get body() {
    if (this.#body instanceof Error) throw this.#body; // an attachment that failed
    return isText(this.#body) ? encoder.encode(this.#body) : this.#body;
  }

  get text() {
    return isText(this.#body) ? this.#body : decoder.decode(this.body);
  }

  json() {
    return JSON.parse(this.text);
  }
}

// A message whose body is a value in JSON: text, null for the first attachment, or other JSON, kept as it was written.
function enclosed(json, value, attachments, fields) {
  if (isText(value)) return new Message(value, attachments, fields);
  if (value === null && attachments.length) return new Message(attachments[0], attachments.slice(1), fields);
  const before = BEFORE_BODY.exec(json)?.[0].length;
  const written = before ? json.slice(before, json[0] == "[" ? -1 : json.lastIndexOf(',"ts":')) : JSON.stringify(value);
  return new Message(written, attachments, { contentType: "application/json", ...fields });
}

function readFailure(payload) {
  let [, number, detail] = /^(\d{1,9}) (.*)$/s.exec(payload) ?? [];
  const [words, code, tag] = MEANINGS[number] ?? [];
  const fromHub = !!words && `${detail}: `.startsWith(words + ": ");
  if (fromHub) payload = detail.slice(words.length + 2);
  let [, own, name = "", retryAfter, text] =
    FAILURE.exec(payload) ?? (fromHub ? [, code, tag, , payload || words] : [, 500, , , payload]);
  try {
    name = decodeURIComponent(name);
  } catch {} // it stays as it is
  if (own == 500) name ||= "handler-failed";
  return new PolywireError(+own, name, text, { fromHub, retryAfter: retryAfter && +retryAfter });
}

const expired = (timeout, sent) => new PolywireError(504, "timeout", `no answer within ${timeout} ms`, { sent });
const lost = (text, sent) => new PolywireError(503, "connection-lost", text, { sent });

// UMQ-161: an error in the form that readFailure reads.
function writeFailure({ code, tag, text, retryAfter }) {
  let head = tag.replace(/[^\w.~/+-]/gu, encodeURIComponent);
  if (retryAfter) head += ` (retry after ${Math.ceil(retryAfter)} ms)`;
  return `${code} ${head && head.trim() + ": "}${text}`;
}

// A subscription, and its messages that wait to be read.
function inbox(limit) {
  let messages = [];
  let over, failure, wake, closed;
  const entry = {
    take(message) {
      if (messages.length < limit) {
        messages.push(message);
        wake?.();
      } else {
        entry.leave();
        entry.end(new PolywireError(429, "overrun", `${limit} messages wait to be read`));
      }
    },
    close() {
      messages = [];
      entry.leave();
      entry.end();
    },
    end(error) {
      over = true;
      failure = error;
      closed(error);
      wake?.();
    },
  };
  async function* read() {
    try {
      for (;;) {
        while (messages.length) yield messages.shift();
        if (failure) throw failure;
        if (over) return;
        await new Promise((resolve) => (wake = resolve));
      }
    } finally {
      entry.close();
    }
  }
  entry.stream = Object.assign(read(), { close: entry.close, closed: new Promise((resolve) => (closed = resolve)) });
  return entry;
}

export async function connect(
  url,
  {
    token,
    user,
    password,
    signal,
    connectTimeout = 10_000,
    buffer = 8 << 20,
    onDisconnect,
    onReconnect,
    WebSocket = globalThis.WebSocket,
  } = {},
) {
  const requests = new Map(); // in flight, by id
  const waiting = new Set(); // requests to be sent
  const standing = new Map(); // subscriptions and services by id, asked for again on each new connection
  let last = 0; // the newest id: none is used twice, so what comes late is not taken for an answer to something else
  let held = 0; // bytes of the requests
  let attempt = 0;
  let connected = false;
  let socket, hangUp, pause, over, closed;

  url = new URL(url, globalThis.location);
  if (/^umq/.test(url)) url.port ||= 7101;
  url = new URL(url.href.replace(/^(umq|http)/, "ws"));
  if (url.pathname == "/") url.pathname = "/umq";

  const all = () => [...requests.values(), ...waiting];

  // One method of the hub. What is asked `again` is asked on each new connection until it is answered.
  async function ask(method, attachments = [], { signal, timeout, again, most } = {}) {
    signal?.throwIfAborted();
    if (over) throw over;
    const request = { payload: JSON.stringify(method), attachments, again, sent: false };
    request.size = attachments.reduce((sum, each) => sum + each.byteLength, encoder.encode(request.payload).length);
    if (held && held + request.size > most) {
      throw new PolywireError(429, "buffer-full", `${held} bytes wait to be acknowledged`, { sent: false });
    }
    const abort = () => request.done(signal.reason);
    signal?.addEventListener("abort", abort);
    const timer = timeout && setTimeout(() => request.done(expired(timeout, request.sent)), timeout);
    held += request.size;
    waiting.add(request);
    request.promise = new Promise((resolve, reject) => {
      request.done = (error, answer) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
        waiting.delete(request);
        requests.delete(request.id);
        held -= request.size;
        answer ? resolve(answer) : reject(error);
        pump();
      };
    });
    pump();
    return request.promise;
  }

  function pump() {
    for (const request of waiting) {
      if (!connected || requests.size >= WINDOW || (requests.size && socket.bufferedAmount > 1 << 20)) return;
      waiting.delete(request);
      requests.set((request.id = base36(++last)), request);
      request.sent = true;
      send(`C${request.id}:${request.payload}`, request.attachments);
    }
  }

  function send(text, attachments) {
    socket.send((attachments.length ? `A${base36(attachments.length)}:` : "") + text);
    attachments.forEach((each) => socket.send(each));
  }

  // A method with a body: binary ones go as the first attachment.
  function askWith(body, attachments = [], method, options) {
    return isBinary(body)
      ? ask(method(null), [body, ...attachments], options)
      : ask(method(body ?? ""), attachments, options);
  }

  // Subscribe or serve, now and on each new connection.
  async function stand(entry, signal, method, undo) {
    const id = base36(++last);
    entry.leave = () => {
      signal?.removeEventListener("abort", entry.close);
      if (standing.delete(id)) ask(undo(id)).catch(ignore);
    };
    entry.ask = async (options) => {
      entry.asked = true;
      try {
        await ask(method(id), [], { again: true, ...options });
      } catch (error) {
        entry.leave(); // what was aborted may have been accepted
        entry.end(error);
        throw error;
      }
      entry.asked = false;
    };
    standing.set(id, entry);
    await entry.ask({ signal });
    signal?.addEventListener("abort", entry.close);
  }

  // One attempt to connect.
  async function open() {
    const secret = typeof token == "function" ? await token() : token;
    if (over) throw over;
    const hello = secret ? { token: secret } : user ? { user, password } : undefined;
    await new Promise((resolve, reject) => {
      const unfinished = [];
      let silent = 0;
      let failure;
      const end = (error, code) => {
        clearTimeout(timer);
        web.onmessage = web.onerror = web.onclose = null;
        web.close(1000);
        reject(error);
        if (connected) disconnected(error, code);
      };
      const fail = (error) => {
        failure = error;
        web.close(1000);
      };
      const violated = (fatal) => {
        web.send("F0:" + fatal);
        fail(readFailure(fatal));
      };
      const attach = (attachment) => {
        const [frame] = unfinished;
        if (!frame)
          violated("3 Protocol error"); // nothing announced it
        else if (frame.attachments.push(attachment) == frame.count) received(unfinished.shift());
      };
      const web = new WebSocket(url.href, "umq");
      // Pages can't send pings. The hub is asked when nothing came for a while.
      const watch = () => {
        attempt = 0;
        if (++silent == 2) web.send('C:["whoami"]');
        if (silent > 3) end(lost("nothing came for a minute"));
      };
      let timer = setTimeout(() => end(expired(connectTimeout, false)), connectTimeout);
      hangUp = end;
      socket = web;
      web.binaryType = "arraybuffer";
      web.onopen = () => web.send("H1:" + (JSON.stringify(hello) ?? ""));
      web.onerror = ({ message = "no hub answers, or it refuses pages of this origin" }) =>
        end(failure ?? lost(`no connection to ${url}: ${message}`));
      web.onclose = ({ code }) => end(failure ?? lost(`closed with code ${code}`), code);
      web.onmessage = ({ data }) => {
        silent = 0;
        if (failure) return;
        if (!isText(data)) return attach(new Uint8Array(data));
        const [, count, command, id, payload] = FRAME.exec(data) ?? [];
        if (!command) return violated("3 Protocol error");
        if (command == "F") return fail(readFailure(payload));
        if (command == "-") return attach(new PolywireError(502, "attachment-failed", payload));
        if (command == "W") {
          if (id != 1) return violated("5 Unsupported version: " + id);
          clearTimeout(timer);
          timer = setInterval(watch, 15_000);
          connected = true;
          resolve();
        }
        const frame = { command, id, payload, attachments: [], count: parseInt(count || 0, 36) };
        frame.count ? unfinished.push(frame) : received(frame);
      };
    });
    pump();
  }

  // A message with all its attachments.
  function received({ command, id, payload, attachments }) {
    const request = requests.get(id);
    const entry = standing.get(id);
    if (command == "R") request?.done(null, { payload, attachments });
    else if (command == "E" || command == "!") {
      const error = readFailure(payload);
      if (!request?.again || error.tag != "draining") request?.done(error); // else it is asked again
    } else if (command == "T") {
      const { channel, headers, body, ts } = JSON.parse(payload);
      entry?.take(enclosed(payload, body, attachments, { channel, headers, timestamp: new Date(ts) }));
    } else if (command == "D") {
      standing.delete(id);
      entry?.end();
    } else if (command == "B") answer(id, payload, attachments);
    else if (command == "C") send(`E${id}:6 No RPC server here`, []);
  }

  async function answer(id, payload, attachments) {
    const web = socket;
    const [callback] = payload.split(":", 1);
    const { service, handler } = standing.get(callback) ?? {};
    let text = `E${id}:2 Callback not found`;
    let files = [];
    try {
      if (handler) {
        payload = payload.slice(callback.length + 1);
        const [method, value] = JSON.parse(payload);
        let body = await handler(enclosed(payload, value, attachments, { service, method }));
        if (body instanceof Reply) ({ body, attachments: files } = body);
        body ??= "";
        if (isBinary(body) || (body === "" && files.length)) [body, files] = ["", [body || new Uint8Array(), ...files]];
        text = `R${id}:${isText(body) ? body : JSON.stringify(body)}`;
      }
    } catch (error) {
      if (!(error instanceof PolywireError)) {
        console.error(error);
        error = new PolywireError(500, "handler-failed", "the handler failed");
      }
      text = `E${id}:${writeFailure(error)}`;
      files = [];
    }
    if (socket == web && connected) send(text, files);
  }

  function disconnected(error, code) {
    connected = false;
    if (over) return;
    // If the hub refused a message for its size, the largest one is too large, whichever it was.
    const [largest] = all().sort((one, other) => other.size - one.size);
    if (code == 1009) largest?.done(new PolywireError(413, "too-large", error.text));
    const before = all();
    requests.clear();
    waiting.clear();
    standing.forEach((entry) => entry.asked || entry.ask().catch(ignore));
    before.forEach((request) =>
      request.again || !request.sent ? waiting.add(request) : request.done(lost(error.text, true)),
    );
    reconnect();
    onDisconnect?.(error);
  }

  async function reconnect() {
    while (!over && !connected) {
      const longest = Math.min(10_000, 200 * 2 ** attempt++);
      // Clients that lost the same hub at the same moment must not come back at the same moment.
      await new Promise((resolve) => (pause = setTimeout(resolve, longest * (0.1 + 0.9 * Math.random()))));
      await open().then(
        () => void onReconnect?.(),
        (error) => error.fromHub && error.code != 429 && error.code != 503 && finish(error), // refused for good
      );
    }
  }

  function finish(error, wanted) {
    if (over) return;
    over = error;
    clearTimeout(pause);
    hangUp?.(error);
    const outcome = wanted ? undefined : error;
    standing.forEach((entry) => entry.end(outcome));
    all().forEach((request) => request.done(error));
    closed(outcome);
  }

  const hub = {
    closed: new Promise((resolve) => (closed = resolve)),

    get connected() {
      return connected;
    },

    async publish(channel, body, { headers, contentType: content_type, retain, attachments, ...options } = {}) {
      await askWith(body, attachments, (value) => ["publish", channel, value, { headers, content_type, retain }], {
        ...options,
        again: true,
        most: buffer,
      });
    },

    async subscribe(pattern, callback, options) {
      const isCalled = typeof callback == "function";
      const { limit = 10_000, signal } = (isCalled ? options : callback) ?? {};
      const entry = inbox(limit);
      await stand(
        entry,
        signal,
        (id) => ["subscribe", pattern, id, { envelope: true }],
        (id) => ["unsubscribe", id],
      );
      if (isCalled) listen(entry.stream, callback);
      return entry.stream;
    },

    async call(service, method, body, { headers, attachments, timeout = 30_000, signal } = {}) {
      const reply = await askWith(
        body,
        attachments,
        (value) => ["call", service, method, value, { timeout, headers }],
        { timeout, signal },
      );
      const [first, ...rest] = reply.attachments;
      return !reply.payload && first ? new Message(first, rest) : new Message(reply.payload, reply.attachments);
    },

    async serve(service, handler, { signal } = {}) {
      const entry = { service, handler, close: () => entry.leave(), end() {} };
      await stand(
        entry,
        signal,
        (id) => ["serve", service, id],
        () => ["unserve", service],
      );
      return { close: entry.close };
    },

    async close({ timeout = 2000 } = {}) {
      const rest = all().map(({ promise }) => promise);
      if (connected && rest.length) {
        await new Promise((resolve) => {
          pause = setTimeout(resolve, timeout);
          Promise.allSettled(rest).then(resolve);
        });
      }
      finish(new PolywireError(499, "closed", "the client was closed"), true);
    },
  };

  const abort = () => finish(signal.reason);
  signal?.throwIfAborted();
  signal?.addEventListener("abort", abort);
  hub.closed.then(() => signal?.removeEventListener("abort", abort));
  await open().catch((error) => {
    finish(error);
    throw error;
  });
  return hub;
}

async function listen(messages, callback) {
  try {
    for await (const message of messages) {
      await Promise.resolve(message).then(callback).catch(console.error);
    }
  } catch {} // messages.closed has it
}
