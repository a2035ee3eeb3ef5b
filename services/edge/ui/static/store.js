// Conversations, kept in this browser (IndexedDB). Where a browser keeps nothing, as in some private
// windows, they last as long as the page.

const NAME = "outrider";
const CONVERSATIONS = "conversations";

let opening = null;
const fallback = new Map();

function database() {
  opening ??= new Promise((resolve) => {
    let request;
    try {
      request = indexedDB.open(NAME, 1);
    } catch {
      resolve(null);
      return;
    }
    request.onupgradeneeded = () => request.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
  });
  return opening;
}

async function run(mode, act) {
  const opened = await database();
  if (opened === null) return act(null);
  return new Promise((resolve, reject) => {
    const transaction = opened.transaction(CONVERSATIONS, mode);
    const request = act(transaction.objectStore(CONVERSATIONS));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

/** All conversations, newest first. */
export async function all() {
  const found = await run("readonly", (store) => (store ? store.getAll() : [...fallback.values()]));
  return found.sort((one, other) => other.updatedAt - one.updatedAt);
}

export async function save(conversation) {
  await run("readwrite", (store) => {
    if (store) return store.put(conversation);
    fallback.set(conversation.id, structuredClone(conversation));
    return null;
  });
}

export async function remove(id) {
  await run("readwrite", (store) => {
    if (store) return store.delete(id);
    fallback.delete(id);
    return null;
  });
}

export async function clear() {
  await run("readwrite", (store) => {
    if (store) return store.clear();
    fallback.clear();
    return null;
  });
}
