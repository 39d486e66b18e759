// What the client does in Node and in browsers: each function is called by a test of tests/javascript/test_client.py with
// the client's module, and what it returns is checked there.

const pages = {}; // what one call leaves for the next

function outcome(error) {
  const { name, code, tag, text, retryAfter, fromHub, sent } = error;
  return { name, code, tag, text, retryAfter, fromHub, sent };
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return outcome(error);
  }
  return null;
}

async function take(messages, count) {
  const found = [];
  for await (const message of messages) {
    found.push(message);
    if (found.length === count) break;
  }
  return found;
}

export async function bodies({ connect }, url) {
  const hub = await connect(url);
  const messages = await hub.subscribe("bodies/*");
  await hub.publish("bodies/text", "21 °C", { headers: { unit: "C", step: 0.5 } });
  await hub.publish("bodies/binary", new Uint8Array([0, 255, 65]));
  await hub.publish("bodies/buffer", new Uint8Array([1, 2, 3]).buffer);
  await hub.publish(
    "bodies/json",
    { degrees: [21.5, null, '"body":'] },
    { headers: { tricky: '"},"body":1,"ts":2}' } },
  );
  await hub.publish("bodies/typed", "12345678901234567890.50", { contentType: "application/json" });
  await hub.publish("bodies/empty");
  const found = await take(messages, 6);
  await hub.close();
  return found.map(({ channel, text, body, headers, contentType, timestamp }) => ({
    channel,
    text,
    body: body instanceof Uint8Array && Array.from(body),
    headers,
    contentType,
    isRecent: Math.abs(Date.now() - timestamp) < 60_000,
  }));
}

export async function retained({ connect }, url) {
  const hub = await connect(url);
  await hub.publish("retained/state", "open", { retain: true });
  const texts = [];
  await new Promise((resolve) => hub.subscribe("retained/**", (message) => resolve(texts.push(message.text))));
  await hub.close();
  return texts;
}

export async function leaving({ connect }, url) {
  const hub = await connect(url);
  const first = await hub.subscribe("leaving");
  const second = await hub.subscribe("leaving");
  await hub.publish("leaving", "1");
  await take(first, 1);
  await hub.publish("leaving", "2");
  const left = await first.next();
  const texts = (await take(second, 2)).map(({ text }) => text);
  const outcomes = [await first.closed, await second.closed];
  await hub.close();
  return [left.done, texts, outcomes.map((each) => each === undefined)];
}

export async function order({ connect }, url, count) {
  const hub = await connect(url);
  let next = 0;
  let wrong = 0;
  const all = new Promise((resolve) => {
    pages.subscribed = hub.subscribe("order", ({ text }) => {
      if (text !== String(next++)) wrong++;
      if (next === count) resolve();
    });
  });
  await pages.subscribed;
  await Promise.all(Array.from({ length: count }, (_, number) => hub.publish("order", String(number))));
  await all;
  await hub.close();
  return [next, wrong];
}

export async function attachments({ connect, Reply }, url) {
  const hub = await connect(url);
  const files = [new Uint8Array([1]), new Uint8Array([2, 255]), new Uint8Array()];
  const messages = await hub.subscribe("attachments");
  await hub.publish("attachments", "with files", { attachments: files });
  await hub.publish("attachments", files[1], { attachments: [files[0].buffer] });
  const published = await take(messages, 2);
  await hub.serve("files", ({ method, body, attachments }) =>
    method === "reverse"
      ? new Reply("reversed", [...attachments].reverse())
      : new Reply(new Uint8Array([body.length]), attachments),
  );
  const reversed = await hub.call("files", "reverse", "", { attachments: files });
  const binary = await hub.call("files", "count", new Uint8Array(7), { attachments: files.slice(0, 1) });
  await hub.close();
  return [...published, reversed, binary].map(({ body, attachments }) => [
    Array.from(body),
    attachments.map((each) => Array.from(each)),
  ]);
}

export async function listen({ connect }, url, channel) {
  pages.hub = await connect(url);
  pages.messages = await pages.hub.subscribe(channel);
}

export async function failedAttachments() {
  const [body, file] = await take(pages.messages, 2);
  await pages.hub.close();
  let thrown;
  try {
    body.text;
  } catch (error) {
    thrown = outcome(error);
  }
  return [thrown, file.text, outcome(file.attachments[0]), Array.from(file.attachments[1])];
}

export async function serve({ connect, PolywireError }, url, service) {
  pages.hub = await connect(url);
  pages.service = await pages.hub.serve(service, async (request) => {
    if (request.method === "refuse")
      throw new PolywireError(404, "no-item", "No item 7 here: sold", { retryAfter: 2500 });
    if (request.method === "break") throw new TypeError("a secret");
    if (request.method === "json") return { ...request.json(), service: request.service };
    return `${request.method} ${request.text}`;
  });
}

export async function stopServing() {
  pages.service.close();
  await failure(pages.hub.call("nobody", "at-all")); // is answered behind it
  await pages.hub.close();
}

export async function call({ connect }, url, service) {
  const hub = await connect(url);
  const answer = await hub.call(service, "greet", "Anna");
  const failures = [
    await failure(hub.call(service, "refuse")),
    await failure(hub.call(service, "break")),
    await failure(hub.call("nobody", "greet")),
    await failure(hub.call(service, "wait", "", { timeout: 50 })),
    await failure(hub.publish("a/*/b", "")),
    await failure(hub.subscribe("a/**/b")),
  ];
  await hub.close();
  return [answer.text, ...failures];
}

export async function aborted({ connect }, url) {
  const reason = new Error("enough");
  const over = AbortSignal.abort(reason);
  const isReason = async (promise) =>
    promise.then(
      () => false,
      (error) => error === reason,
    );
  const hub = await connect(url);
  const late = new AbortController();
  const messages = await hub.subscribe("aborted", { signal: late.signal });
  await hub.serve("slow", () => new Promise(() => {}));
  const call = isReason(hub.call("slow", "wait", "", { signal: late.signal }));
  await hub.publish("aborted", "1");
  late.abort(reason);
  const outcomes = [
    await isReason(connect(url, { signal: over })),
    await isReason(hub.publish("aborted", "2", { signal: over })),
    await isReason(hub.subscribe("aborted", { signal: over })),
    await isReason(hub.serve("other", () => "", { signal: over })),
    await call,
    (await messages.next()).done,
  ];
  const closing = new AbortController();
  const second = await connect(url, { signal: closing.signal });
  closing.abort(reason);
  outcomes.push((await second.closed) === reason, await isReason(second.publish("aborted", "3")));
  await hub.close();
  return outcomes;
}

export async function overrun({ connect }, url) {
  const hub = await connect(url);
  const messages = await hub.subscribe("overrun", { limit: 10 });
  await Promise.all(Array.from({ length: 20 }, (_, number) => hub.publish("overrun", String(number))));
  const error = outcome(await messages.closed);
  const texts = [];
  const thrown = await failure(
    (async () => {
      for await (const { text } of messages) texts.push(text);
    })(),
  );
  await hub.close();
  return [texts.length, error, thrown];
}

export async function bufferFull({ connect }, url) {
  const hub = await connect(url, { buffer: 1000 });
  const outcomes = await Promise.all([
    failure(hub.publish("buffer", "x".repeat(2000))),
    failure(hub.publish("buffer", "y")),
  ]);
  outcomes.push(await failure(hub.publish("buffer", "z")));
  await hub.close();
  return outcomes;
}

export async function tooLarge({ connect }, url, size) {
  let disconnected;
  const hub = await connect(url, { onDisconnect: (error) => (disconnected = error.tag) });
  const messages = await hub.subscribe("large");
  const publications = ["1", "x".repeat(size), "2", new Uint8Array(size - 2000)].map((body) =>
    failure(hub.publish("large", body)),
  );
  const outcomes = await Promise.all(publications);
  const found = await take(messages, 2);
  await hub.close();
  return [outcomes, disconnected, found.map(({ body }) => body.length).sort()];
}

export async function closing({ connect }, url) {
  const hub = await connect(url);
  const messages = await hub.subscribe("closing");
  const reading = messages.next();
  const published = hub.publish("closing/queue", "safe");
  await hub.serve("endless", () => new Promise(() => {}));
  const called = failure(hub.call("endless", "wait"));
  const wasConnected = hub.connected;
  await hub.close({ timeout: 20 });
  await hub.close();
  return [
    wasConnected,
    hub.connected,
    await published,
    (await reading).done,
    await called,
    await failure(hub.publish("closing", "late")),
    (await hub.closed) === undefined,
  ];
}

export async function open({ connect }, url, options = {}) {
  if (options.renewed) options.token = async () => options.renewed;
  const hub = await connect(url, options);
  await hub.publish("open", "1");
  await hub.close();
  return "open";
}

export async function refused({ connect }, url, options) {
  return failure(connect(url, options));
}

// A client that lives through a restart: it publishes 100 numbers before, as many while the hub is away, and the rest after.
export async function live({ connect }, url) {
  const events = [];
  const heard = new Set();
  const hub = await connect(url, {
    onDisconnect: ({ tag }) => events.push(tag),
    onReconnect: () => events.push("back"),
  });
  pages.life = { hub, events, heard, published: [], sent: 0 };
  await hub.subscribe("life", ({ text }) => heard.add(Number(text)));
  await hub.serve("life", ({ text }) => text + "!");
  await more();
  await Promise.all(pages.life.published);
}

export async function more() {
  const { hub, published } = pages.life;
  for (let number = 0; number < 100; number++) published.push(hub.publish("life", String(pages.life.sent++)));
}

export async function away() {
  while (pages.life.hub.connected) await new Promise((resolve) => setTimeout(resolve, 5));
  await more();
  pages.life.call = pages.life.hub.call("life", "echo", "waited", { timeout: 20_000 });
}

export async function survived() {
  const { hub, published, heard, events, call } = pages.life;
  await more();
  await Promise.all(published);
  await hub.publish("life", "-1");
  while (!heard.has(-1)) await new Promise((resolve) => setTimeout(resolve, 5));
  const answer = await call;
  await hub.close();
  return [published.length, heard.size - 1, answer.text, events];
}

// Subscriptions and services that are closed while there is no connection stay closed.
export async function leaveAway() {
  const { hub } = pages.life;
  const messages = await hub.subscribe("left");
  const service = await hub.serve("left", () => "still here");
  pages.left = { messages, service };
}

export async function left() {
  const { hub } = pages.life;
  while (hub.connected) await new Promise((resolve) => setTimeout(resolve, 5));
  pages.left.messages.close();
  pages.left.service.close();
}

export async function knock() {
  const { hub } = pages.life;
  await hub.publish("left", "anybody?");
  return failure(hub.call("left", "knock"));
}

export async function end() {
  await pages.life.hub.close();
}

// One whose password is not accepted any more.
export async function gone() {
  const { hub } = pages.life;
  const waiting = failure(hub.publish("life", "0"));
  return [outcome(await hub.closed), await waiting, await failure(hub.call("life", "echo"))];
}

// Against a server of a test's own: what is heard until there are `count` messages, or until the connection is lost.
export async function hear({ connect }, url, count) {
  let lost;
  const ended = new Promise((resolve) => (lost = resolve));
  const hub = await connect(url, { onDisconnect: lost });
  const messages = await hub.subscribe("any");
  const heard = await Promise.race([take(messages, count), ended.then(() => [])]);
  await hub.close();
  return heard.map(({ text }) => text.length);
}
