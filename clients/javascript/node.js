// Polywire's client for Node. Before version 22 Node has no WebSocket: here is one, as far as polywire.js needs it.

import { createHash, randomBytes } from "node:crypto";
import { request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";
import { connect as connectBy } from "./polywire.js";

export * from "./polywire.js";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"; // RFC 6455, 1.3
const [CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG] = [0, 1, 2, 8, 9, 10];
const [PROTOCOL_ERROR, NO_CODE, BROKEN, NOT_UTF8, TOO_BIG] = [1002, 1005, 1006, 1007, 1009];
const MAX_MESSAGE = 64 << 20;
const KEYS = 4096; // bytes of masking keys
const CLOSE_TIME = 2000; // ms in which the hub has to answer a closing frame

let keys = Buffer.alloc(0);
let keyAt = 0;

class WebSocket {
  onopen;
  onmessage;
  onerror;
  onclose;
  #request;
  #socket;
  #decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  #code = BROKEN;
  #closing = false; // a closing frame was sent
  #chunks = []; // received, and not yet a frame
  #received = 0;
  #wanted = 0; // bytes that the next frame needs
  #opcode; // of a message whose first frame came
  #frames = [];
  #size = 0;

  constructor(url, protocol) {
    const key = randomBytes(16).toString("base64");
    const accept = createHash("sha1")
      .update(key + GUID)
      .digest("base64");
    const headers = {
      Connection: "Upgrade",
      Upgrade: "websocket",
      "Sec-WebSocket-Version": "13",
      "Sec-WebSocket-Key": key,
      "Sec-WebSocket-Protocol": protocol,
    };
    const request = url.startsWith("wss:") ? httpsRequest : httpRequest;
    this.#request = request(url.replace(/^ws/, "http"), { headers, agent: false });
    this.#request.on("error", (error) => this.#failed(error));
    this.#request.on("response", (response) => this.#refused(response));
    this.#request.on("upgrade", (response, socket, head) => {
      this.#socket = socket;
      socket.on("error", (error) => this.#failed(error));
      socket.on("close", () => this.#ended());
      if (response.headers["sec-websocket-accept"] !== accept) socket.destroy(new Error("it does not speak WebSocket"));
      else this.#begin(head);
    });
    this.#request.end();
  }

  get bufferedAmount() {
    return this.#socket?.writableLength ?? 0;
  }

  send(data) {
    if (typeof data === "string") this.#write(TEXT, Buffer.from(data));
    else if (ArrayBuffer.isView(data)) this.#write(BINARY, Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    else this.#write(BINARY, Buffer.from(data));
  }

  close(code) {
    if (!this.#socket) this.#request.destroy();
    else this.#writeClose(code);
  }

  #begin(head) {
    this.#socket.setNoDelay();
    this.#socket.on("data", (chunk) => this.#read(chunk));
    this.#socket.on("end", () => this.#socket.end());
    this.onopen?.();
    if (head.length) this.#read(head);
  }

  async #refused(response) {
    let text = "";
    response.setEncoding("utf8");
    try {
      for await (const part of response) if (text.length < 1000) text += part;
    } catch {} // what came is enough
    this.#failed(new Error(`${response.statusCode} ${text.trim() || response.statusMessage}`));
  }

  #failed(error) {
    this.onerror?.({ message: error.message || error.code }); // where several addresses failed there is only a code
    this.#ended();
  }

  #ended() {
    this.onclose?.({ code: this.#code });
    this.onclose = null;
    this.#request.destroy();
    this.#socket?.destroy();
  }

  #read(chunk) {
    this.#chunks.push(chunk);
    this.#received += chunk.length;
    if (this.#received < this.#wanted) return; // so that a large frame is put together once
    const data = this.#chunks.length === 1 ? chunk : Buffer.concat(this.#chunks);
    let at = 0;
    for (;;) {
      if (data[at + 1] & 128) return this.#violated(PROTOCOL_ERROR); // masked
      const [start, end] = extent(data, at);
      this.#wanted = end - at;
      if (this.#wanted > MAX_MESSAGE) return this.#violated(TOO_BIG);
      if (end > data.length || this.#socket.destroyed) break;
      this.#receive(data[at], data.subarray(start, end));
      at = end;
    }
    this.#chunks = [data.subarray(at)];
    this.#received = data.length - at;
  }

  #receive(head, payload) {
    const opcode = head & 15;
    const control = opcode >= CLOSE;
    if (head & 0x70 || ![CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG].includes(opcode))
      return this.#violated(PROTOCOL_ERROR);
    if (control ? head < 128 || payload.length > 125 : (opcode === CONTINUATION) === (this.#opcode === undefined)) {
      return this.#violated(PROTOCOL_ERROR);
    }
    if (opcode === CLOSE) this.#receiveClose(payload);
    else if (opcode === PING) this.#write(PONG, Buffer.from(payload));
    else if (!control) this.#join(head >= 128, opcode, payload);
  }

  #join(final, opcode, payload) {
    if (opcode !== CONTINUATION) this.#opcode = opcode;
    this.#size += payload.length;
    if (this.#size > MAX_MESSAGE) return this.#violated(TOO_BIG);
    this.#frames.push(payload);
    if (!final) return;
    let data = this.#frames.length === 1 ? payload : Buffer.concat(this.#frames);
    try {
      if (this.#opcode === TEXT) data = this.#decoder.decode(data);
    } catch {
      return this.#violated(NOT_UTF8);
    }
    this.#frames = [];
    this.#size = 0;
    this.#opcode = undefined;
    this.onmessage?.({ data });
  }

  #receiveClose(payload) {
    this.#code = payload.length >= 2 ? payload.readUInt16BE() : NO_CODE;
    this.#writeClose(this.#code === NO_CODE ? undefined : this.#code);
    this.#socket.end();
  }

  #violated(code) {
    this.#code = code;
    this.#writeClose(code);
    this.#socket.destroySoon();
  }

  #writeClose(code) {
    if (this.#closing) return;
    const payload = Buffer.alloc(code ? 2 : 0);
    if (code) payload.writeUInt16BE(code);
    this.#write(CLOSE, payload);
    this.#closing = true;
    setTimeout(() => this.#socket.destroy(), CLOSE_TIME).unref();
  }

  #write(opcode, payload) {
    if (this.#closing || !this.#socket.writable) return;
    const socket = this.#socket;
    if (!socket.writableCorked) {
      socket.cork(); // all frames of a turn are written at once
      process.nextTick(() => socket.uncork());
    }
    socket.write(masked(opcode, payload));
  }
}

// Where the payload of the frame at this place starts, and where it ends: behind the data if there is not enough of it.
function extent(data, at) {
  const length = data[at + 1];
  if (data.length < at + 10 && data.length < at + (length < 126 ? 2 : length === 126 ? 4 : 10))
    return [at, data.length + 1];
  if (length < 126) return [at + 2, at + 2 + length];
  if (length === 126) return [at + 4, at + 4 + data.readUInt16BE(at + 2)];
  return [at + 10, at + 10 + Number(data.readBigUInt64BE(at + 2))];
}

// RFC 6455, 5.2 and 5.3.
function masked(opcode, payload) {
  const { length } = payload;
  const start = length < 126 ? 6 : length < 65536 ? 8 : 14;
  const frame = Buffer.allocUnsafe(start + length);
  frame[0] = 128 | opcode;
  if (start === 6) frame[1] = 128 | length;
  else if (start === 8) frame.writeUInt16BE(length, 2);
  else frame.writeBigUInt64BE(BigInt(length), 2);
  if (start === 8) frame[1] = 254;
  if (start === 14) frame[1] = 255;
  if (keyAt === keys.length) {
    keys = randomBytes(KEYS); // many at once: each time costs as much as a small message
    keyAt = 0;
  }
  const key = keys.subarray(keyAt, (keyAt += 4));
  key.copy(frame, start - 4);
  for (let index = 0; index < length; index++) frame[start + index] = payload[index] ^ key[index & 3];
  return frame;
}

export const connect = (url, options) => connectBy(url, { WebSocket: globalThis.WebSocket ?? WebSocket, ...options });
