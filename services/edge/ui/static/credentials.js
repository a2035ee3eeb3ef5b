// The user's API key, and the random name by which the edge knows this tab if there is no key.
// Both stay in this tab (sessionStorage), and the key beyond it only if the user says so.

const KEY = "outrider.key";
const CLIENT = "outrider.client";

export function key() {
  return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
}

export function isRemembered() {
  return localStorage.getItem(KEY) !== null;
}

/** Keep a key for this tab, or with `remember` in this browser. "" forgets it everywhere. */
export function setKey(text, { remember = false } = {}) {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
  if (text) (remember ? localStorage : sessionStorage).setItem(KEY, text);
}

/** 32 random bytes in hexadecimal, the same for all of this tab's requests. */
export function clientSecret() {
  let secret = sessionStorage.getItem(CLIENT);
  if (!secret) {
    const bytes = crypto.getRandomValues(new Uint8Array(32));
    secret = Array.from(bytes, (it) => it.toString(16).padStart(2, "0")).join("");
    sessionStorage.setItem(CLIENT, secret);
  }
  return secret;
}

/** Headers that say who asks. */
export function headers() {
  const stated = key();
  return stated
    ? { authorization: `Bearer ${stated}` }
    : { "x-outrider-client": clientSecret() };
}
