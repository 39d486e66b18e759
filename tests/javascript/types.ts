// Compiled, not run: what a program in TypeScript may write, and what the compiler must refuse.

import { connect, type Hub, type Message, PolywireError, Reply, type Subscription } from "polywire";

export async function all(signal: AbortSignal): Promise<void> {
  const hub: Hub = await connect("umq://127.0.0.1", {
    token: async () => "token",
    signal,
    connectTimeout: 5000,
    buffer: 1024,
    onDisconnect: (error) => console.log(error.tag, error.sent),
    onReconnect: () => undefined,
    WebSocket,
  });
  const nothing: void = await hub.publish("a", new Uint8Array(1), { headers: { unit: "C", step: 1 }, retain: true });
  await hub.publish("a", { degrees: 21.5 }, { attachments: [new ArrayBuffer(1)], timeout: 10, contentType: "x/y", signal });
  const messages: Subscription = await hub.subscribe("a/*", { limit: 10, signal });
  for await (const message of messages) {
    const { channel, text, body, timestamp }: { channel: string; text: string; body: Uint8Array; timestamp: Date } = message;
    const [first] = message.attachments;
    if (first instanceof PolywireError) console.log(first.code + 1, first.retryAfter, channel, text, body, timestamp);
  }
  const listening = await hub.subscribe("a/*", async (message) => console.log(message.json().degrees), { limit: 1 });
  listening.close();
  const answer: Message = await hub.call("lamp", "toggle", "kitchen", { timeout: 1000, signal });
  const service = await hub.serve("lamp", ({ method, text }) => {
    if (method !== "toggle") throw new PolywireError(404, "no-method", `no ${method}`, { retryAfter: 1000 });
    return new Reply(text, [new Uint8Array(1)]);
  });
  await hub.serve("silent", () => {}, { signal });
  service.close();
  console.log(nothing, answer.text, hub.connected, await hub.closed);
  await hub.close({ timeout: 100 });
}

export async function wrong(hub: Hub): Promise<void> {
  // @ts-expect-error a channel is a string
  await hub.publish(1, "");
  // @ts-expect-error the option is retain
  await hub.publish("a", "", { retained: true });
  // @ts-expect-error the hub gives them
  hub.connected = true;
  // @ts-expect-error a tag is needed
  throw new PolywireError(404);
}
