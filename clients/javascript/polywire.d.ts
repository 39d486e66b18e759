/** What is published and replied: text, binary data as it is, and any other value as its JSON. */
export type Body = string | Uint8Array | ArrayBuffer | number | boolean | object | null | undefined;

export type Headers = Record<string, string | number>;

export interface ConnectOptions {
  /** A token for the hub's `[auth]`, or a function that gives one for each connection. */
  token?: string | (() => string | Promise<string>);
  user?: string;
  password?: string;
  /** Closes the client, also while it is connecting. */
  signal?: AbortSignal;
  /** Milliseconds for one attempt to connect, 10,000 by default. */
  connectTimeout?: number;
  /** Bytes that may wait to be acknowledged, 8 MiB by default; further publications fail with `buffer-full`. */
  buffer?: number;
  /** Called when the connection is lost. The client reconnects by itself. */
  onDisconnect?: (error: PolywireError) => void;
  /** Called when there is a connection again. */
  onReconnect?: () => void;
  /** The class to use instead of the global `WebSocket`. */
  WebSocket?: new (url: string, protocol: string) => object;
}

export interface RequestOptions {
  /** Milliseconds, after which the request fails with `timeout`. */
  timeout?: number;
  /** Fails the request with the signal's reason. */
  signal?: AbortSignal;
  /** Binary data that goes along with the body. */
  attachments?: readonly (Uint8Array | ArrayBuffer)[];
  headers?: Headers;
}

export interface PublishOptions extends RequestOptions {
  contentType?: string;
  /** Keep the message for those who subscribe later. */
  retain?: boolean;
}

export interface SubscribeOptions {
  /** How many messages may wait to be read, 10,000 by default. With more the subscription ends with `overrun`. */
  limit?: number;
  /** Ends the subscription. */
  signal?: AbortSignal;
}

export interface Message {
  /** The body as bytes. Throws a `PolywireError` if it was an attachment that its sender could not send. */
  readonly body: Uint8Array;
  /** The body as text. */
  readonly text: string;
  /** The body parsed as JSON. */
  json(): any;
  /** `application/json` where the hub marks a body so. UMQ carries no others. */
  readonly contentType?: string;
  /** An attachment that its sender could not send is an error. */
  readonly attachments: readonly (Uint8Array | PolywireError)[];
}

/** A message of a subscription. */
export interface PublishedMessage extends Message {
  readonly channel: string;
  readonly headers: Headers;
  /** When the hub received it. */
  readonly timestamp: Date;
}

/** A call of a service of this program. */
export interface Request extends Message {
  readonly service: string;
  readonly method: string;
}

/** Iterate over it with `for await`; leaving the loop unsubscribes. */
export interface Subscription extends AsyncGenerator<PublishedMessage, void, void> {
  /** Unsubscribe. */
  close(): void;
  /** Resolves when the subscription has ended: with the error that ended it, if one did. */
  readonly closed: Promise<PolywireError | undefined>;
}

export interface Service {
  /** Offer it no longer. */
  close(): void;
}

export interface Hub {
  readonly connected: boolean;
  /** Resolves when the client will not connect again: with the reason, or with nothing after `close`. */
  readonly closed: Promise<unknown>;

  /**
   * Publish to a topic, or put into `queue/<name>`. Resolves when the hub has accepted the message; a hub with a journal
   * has it on disk. It is sent again on each new connection until then.
   */
  publish(channel: string, body?: Body, options?: PublishOptions): Promise<void>;

  /**
   * Subscribe to a pattern (`*` is one level, a last `**` any number), or take from `queue/<name>`. Resolves when the
   * hub has agreed. It is subscribed again on each new connection.
   */
  subscribe(pattern: string, options?: SubscribeOptions): Promise<Subscription>;
  /** Call a function with each message, one after the other; a promise it returns is awaited, its errors are logged. */
  subscribe(
    pattern: string,
    callback: (message: PublishedMessage) => unknown,
    options?: SubscribeOptions,
  ): Promise<Subscription>;

  /** Call a service, on whichever protocol it is offered. Fails after 30 s by default. It is never sent twice. */
  call(service: string, method: string, body?: Body, options?: RequestOptions): Promise<Message>;

  /**
   * Offer a service. The handler returns the body of the answer, or a `Reply`, or throws a `PolywireError`. It is
   * offered again on each new connection.
   */
  serve(
    service: string,
    handler: (request: Request) => Body | Reply | void | Promise<Body | Reply | void>,
    options?: { signal?: AbortSignal },
  ): Promise<Service>;

  /** Wait until what was published is acknowledged, for 2 s at most or `timeout` ms, and close the connection. */
  close(options?: { timeout?: number }): Promise<void>;
}

/**
 * Connect to a hub: `ws://127.0.0.1:7101/umq`, `wss://…`, or `umq://127.0.0.1` and `umqs://…` with the default port
 * and path. Fails if there is no connection; reconnects by itself when one is lost later.
 */
export function connect(url: string | URL, options?: ConnectOptions): Promise<Hub>;

/** An answer with attachments. */
export class Reply {
  constructor(body: Body, attachments?: readonly (Uint8Array | ArrayBuffer)[]);
  body: Body;
  attachments: readonly (Uint8Array | ArrayBuffer)[];
}

/** Whatever goes wrong. Thrown by a service's handler it is what the caller gets. */
export class PolywireError extends Error {
  constructor(code: number, tag: string, text: string, more?: { retryAfter?: number });
  /** As in HTTP, from 400 to 599. */
  code: number;
  /** For programs: letters, digits and `._~/+-`. */
  tag: string;
  /** For people. */
  text: string;
  /** Milliseconds after which it may be tried again. */
  retryAfter?: number;
  /** The hub refused or failed the request itself: no service was asked, or none answered. */
  fromHub?: boolean;
  /** False: nothing was sent, so it can be tried again without harm. True: it was sent, and may have arrived. */
  sent?: boolean;
}
