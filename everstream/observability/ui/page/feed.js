// The stream of the run's view. A broken stream is reopened as long as the page is open; until then
// the page keeps what it has and shows how old it is. Before the stream opens, the page gets the
// cookie that it needs, for which the server wants to see the token once.

const FIRST_MS = 500;
const LONGEST_MS = 5000;

/** told(view) with each update, which may be partial; broken(refused) when the stream breaks:
 * refused is true if the server wants a token that it did not get. */
export class Feed {
  constructor(token, told, broken) {
    this.token = token;
    this.told = told;
    this.broken = broken;
    this.view = null;
    this.wait = FIRST_MS;
    this.connect();
  }

  async connect() {
    const status = await enter(this.token());
    if (status !== 200) return this.later(status === 401);
    this.stream = new EventSource("api/stream");
    const heard = (view) => {
      this.wait = FIRST_MS;
      this.view = view;
      this.told(view);
    };
    this.stream.addEventListener("view", (event) => heard(JSON.parse(event.data)));
    this.stream.addEventListener("patch", (event) => heard({ ...this.view, ...JSON.parse(event.data) }));
    this.stream.onerror = () => {
      // The browser stops reconnecting after some errors: we do not.
      this.stream.close();
      this.later(false);
    };
  }

  later(refused) {
    this.broken(refused);
    setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(LONGEST_MS, this.wait * 2);
  }
}

/** Start a session with the server: the status of its answer, 0 if there is none. */
async function enter(token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  try {
    return (await fetch("api/session", { method: "POST", headers })).status;
  } catch {
    return 0;
  }
}

/** GET JSON from the server; a refusal is thrown as an error with its text. */
export async function ask(path) {
  return answered(await fetch(path, { headers: { Accept: "application/json" } }));
}

export async function answered(response) {
  const text = await response.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    throw new Error(`the server answered ${response.status} with something that is not JSON`);
  }
  if (!response.ok) throw new Error(body?.error ?? body?.detail ?? `the server answered ${response.status}`);
  return body;
}
