// Chats over HTTP for k6: TOLD is the JSON of bench/http/k6.py. k6 reads a stream to its end, so it
// tells when its first byte came and when its last.
import http from "k6/http";
import exec from "k6/execution";
import { Counter, Trend } from "k6/metrics";

const told = JSON.parse(__ENV.TOLD);
const numErrors = new Counter("chat_errors");
const numTokens = new Counter("chat_tokens");
const firstByte = new Trend("chat_first_byte", true);

export const options = {
  scenarios: {
    chats: {
      executor: "shared-iterations",
      vus: told.streams,
      iterations: told.bodies.length,
      maxDuration: told.max_duration,
    },
  },
};

export default function () {
  const headers = { "Content-Type": "application/json" };
  if (told.key) headers["Authorization"] = `Bearer ${told.key}`;
  const body = JSON.stringify(told.bodies[exec.scenario.iterationInTest]);
  const answer = http.post(told.url, body, { headers, timeout: "300s" });
  const text = answer.body || "";
  if (answer.status !== 200 || !text.trim().endsWith("data: [DONE]") || /^data: \{"error"/m.test(text)) {
    numErrors.add(1);
    return;
  }
  const counted = /"completion_tokens": ?(\d+)/.exec(text);
  numTokens.add(counted ? Number(counted[1]) : 0);
  firstByte.add(answer.timings.waiting);
}
