// Server-sent events (WHATWG HTML, section 9.2), read from text as it comes. Pure.

export class EventReader {
  #rest = "";

  /** The events that `text` completes: {name, data, id}. Comments are left out. */
  read(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines) this.#take(line, events);
    return events;
  }

  #event = { name: "", data: [], id: "" };

  #take(line, events) {
    if (line === "") {
      const { name, data, id } = this.#event;
      if (data.length) events.push({ name, data: data.join("\n"), id });
      this.#event = { name: "", data: [], id: "" };
      return;
    }
    const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
    if (field === "data") this.#event.data.push(value);
    else if (field === "event") this.#event.name = value;
    else if (field === "id") this.#event.id = value;
  }
}
