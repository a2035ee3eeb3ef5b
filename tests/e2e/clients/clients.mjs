// Drives a mesh with clients from npm as their documents show it. Reads {url, key, model} as JSON
// from the command line and writes one line of JSON per case: {"case": NAME, "error": "" or why}.

import assert from 'node:assert/strict'

import Anthropic from '@anthropic-ai/sdk'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { APICallError, Output, generateText, isStepCount, streamText, tool } from 'ai'
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'

const { url, key, model } = JSON.parse(process.argv[2])
const QUESTION = 'What is a river?'
const COLD = 'Is it cold in Paris?'
const ANSWER = z.object({ river: z.string().max(12), km: z.boolean() })
const WEATHER = {
  type: 'object',
  properties: { city: { type: 'string', maxLength: 12 } },
  required: ['city'],
}
const cases = {}

async function joined(stream, textOf) {
  let text = ''
  for await (const part of stream) text += textOf(part) ?? ''
  return text
}

// Fails unless the work is refused in this way.
async function refused(work, kind, status) {
  try {
    await work()
  } catch (error) {
    assert.ok(error instanceof kind, `${error.constructor.name}: ${error.message}`)
    assert.equal(error.status ?? error.statusCode, status, error.message)
    return error
  }
  assert.fail('it was not refused')
}

// Leaves a reply that would go on for long; a client that is aborted says so in its own way.
async function aborted(begin) {
  const controller = new AbortController()
  let count = 0
  try {
    for await (const part of await begin(controller.signal)) {
      if (part !== undefined && ++count === 3) controller.abort()
    }
  } catch (error) {
    assert.match(`${error.name} ${error.message}`, /abort/i)
  }
  assert.ok(controller.signal.aborted, 'the reply ended before it was left')
}

// The package of OpenAI's.

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 })
const messages = [{ role: 'user', content: QUESTION }]
const functionTool = {
  type: 'function',
  function: { name: 'get_weather', description: 'Of a city.', parameters: WEATHER },
}

cases['openai chat'] = async () => {
  const asked = { model, messages, max_tokens: 16, temperature: 0 }
  const whole = await openai.chat.completions.create(asked)
  const stream = await openai.chat.completions.create({ ...asked, stream: true })
  const text = await joined(stream, (it) => it.choices[0]?.delta.content)
  assert.equal(text, whole.choices[0].message.content)
  assert.ok(whole.usage.completion_tokens > 0)
}

cases['openai responses'] = async () => {
  const asked = { model, input: QUESTION, max_output_tokens: 16, temperature: 0 }
  const whole = await openai.responses.create(asked)
  const stream = openai.responses.stream(asked)
  let text = ''
  stream.on('response.output_text.delta', (event) => (text += event.delta))
  const last = await stream.finalResponse()
  assert.ok(text)
  assert.equal(text, whole.output_text)
  assert.equal(last.output_text, text)
}

cases['openai objects'] = async () => {
  const found = await openai.chat.completions.parse({
    model,
    messages,
    max_tokens: 200,
    temperature: 0,
    response_format: zodResponseFormat(ANSWER, 'answer'),
  })
  ANSWER.parse(found.choices[0].message.parsed)
}

cases['openai tools'] = async () => {
  const cities = []
  const runner = openai.chat.completions.runTools({
    model,
    messages: [{ role: 'user', content: COLD }],
    max_tokens: 100,
    temperature: 0,
    parallel_tool_calls: false,
    tools: [
      {
        type: 'function',
        function: {
          name: 'get_weather',
          description: 'Of a city.',
          parameters: WEATHER,
          parse: JSON.parse,
          function: ({ city }) => {
            cities.push(city)
            return '-3 degrees'
          },
        },
      },
    ],
  }, { maxChatCompletions: 2 })
  await runner.done().catch(() => undefined) // it may call again, and has had its two turns
  assert.equal(cities[0], 'Paris')
  assert.ok(runner.messages.some((it) => it.role === 'tool'))
}

cases['openai streamed tools'] = async () => {
  const stream = openai.chat.completions.stream({
    model,
    messages: [{ role: 'user', content: COLD }],
    max_tokens: 100,
    temperature: 0,
    tools: [functionTool],
    tool_choice: 'required',
    parallel_tool_calls: false,
  })
  const { message, finish_reason: reason } = (await stream.finalChatCompletion()).choices[0]
  assert.equal(reason, 'tool_calls')
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: 'Paris' })
}

cases['openai abort'] = () =>
  aborted((signal) =>
    openai.chat.completions.create(
      { model, messages, max_tokens: 1500, ignore_eos: true, stream: true },
      { signal },
    ),
  )

cases['openai errors'] = async () => {
  const chat = (fields) => () => openai.chat.completions.create({ model, messages, ...fields })
  await refused(chat({ temperature: 9 }), OpenAI.BadRequestError, 400)
  await refused(chat({ model: 'nosuch' }), OpenAI.NotFoundError, 404)
  const long = [{ role: 'user', content: 'word '.repeat(5000) }]
  const error = await refused(chat({ messages: long }), OpenAI.BadRequestError, 400)
  assert.equal(error.code, 'context_length_exceeded')
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
  await refused(() => stranger.models.list(), OpenAI.AuthenticationError, 401)
}

cases['openai models'] = async () => {
  const listed = await openai.models.list()
  assert.ok(listed.data.some((it) => it.id === model))
  assert.equal((await openai.models.retrieve(model)).id, model)
}

// The package of Anthropic's.

const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 })
const claudeTool = { name: 'get_weather', description: 'Of a city.', input_schema: WEATHER }

cases['anthropic messages'] = async () => {
  const asked = { model, messages, max_tokens: 16 }
  const whole = await anthropic.messages.create(asked)
  assert.equal(whole.content[0].type, 'text')
  const stream = anthropic.messages.stream(asked)
  let text = ''
  stream.on('text', (delta) => (text += delta))
  const last = await stream.finalMessage()
  assert.equal(last.content[0].text, text)
  assert.ok(last.usage.output_tokens > 0)
  assert.ok((await anthropic.messages.countTokens({ model, messages })).input_tokens > 0)
}

cases['anthropic tools'] = async () => {
  const asked = {
    model,
    max_tokens: 100,
    tools: [claudeTool],
    tool_choice: { type: 'any', disable_parallel_tool_use: true },
  }
  const question = { role: 'user', content: COLD }
  const stream = anthropic.messages.stream({ ...asked, messages: [question] })
  const called = await stream.finalMessage()
  const block = called.content.find((it) => it.type === 'tool_use')
  assert.equal(called.stop_reason, 'tool_use')
  assert.equal(typeof block.input.city, 'string')
  const result = { type: 'tool_result', tool_use_id: block.id, content: '-3 degrees' }
  const after = await anthropic.messages.create({
    ...asked,
    tool_choice: { type: 'none' },
    messages: [
      question,
      { role: 'assistant', content: called.content },
      { role: 'user', content: [result] },
    ],
  })
  assert.ok(after.content.every((it) => it.type === 'text'))
}

cases['anthropic abort'] = () =>
  aborted((signal) =>
    anthropic.messages.create({ model, messages, max_tokens: 1500, stream: true }, { signal }),
  )

cases['anthropic errors'] = async () => {
  const ask = (fields) => () =>
    anthropic.messages.create({ model, messages, max_tokens: 4, ...fields })
  await refused(ask({ max_tokens: -3 }), Anthropic.BadRequestError, 400)
  await refused(ask({ model: 'nosuch' }), Anthropic.NotFoundError, 404)
  const long = [{ role: 'user', content: 'word '.repeat(5000) }]
  const error = await refused(ask({ messages: long }), Anthropic.BadRequestError, 400)
  assert.match(error.message, /prompt is too long: \d+ tokens > \d+ maximum/)
}

cases['anthropic models'] = async () => {
  const listed = await anthropic.models.list()
  const found = listed.data.find((it) => it.id === model)
  assert.equal(found.type, 'model')
  assert.equal(typeof found.display_name, 'string')
  assert.ok(Date.parse(found.created_at) > 0)
}

// The AI SDK with each of its providers.

const providers = {
  'ai, openai responses': createOpenAI({ baseURL: `${url}/v1`, apiKey: key }).responses(model),
  'ai, openai chat': createOpenAI({ baseURL: `${url}/v1`, apiKey: key }).chat(model),
  'ai, openai-compatible': createOpenAICompatible({
    name: 'outrider',
    baseURL: `${url}/v1`,
    apiKey: key,
    includeUsage: true,
    supportsStructuredOutputs: true,
  })(model),
  'ai, anthropic': createAnthropic({ baseURL: `${url}/v1`, apiKey: key })(model),
}

for (const [name, asked] of Object.entries(providers)) {
  const base = { model: asked, maxRetries: 0, temperature: 0 }

  cases[`${name}: text`] = async () => {
    const whole = await generateText({ ...base, prompt: QUESTION, maxOutputTokens: 16 })
    assert.ok(whole.text)
    const stream = streamText({ ...base, prompt: QUESTION, maxOutputTokens: 16 })
    assert.equal(await joined(stream.textStream, (it) => it), whole.text)
    assert.ok((await stream.totalUsage).outputTokens > 0)
    assert.equal(await stream.finishReason, whole.finishReason)
  }

  cases[`${name}: objects`] = async () => {
    const output = Output.object({ schema: ANSWER })
    const asks = { ...base, prompt: 'A river.', maxOutputTokens: 200, output }
    ANSWER.parse((await generateText(asks)).output)
    const stream = streamText(asks)
    await stream.consumeStream()
    ANSWER.parse(await stream.output)
  }

  for (const [way, run] of Object.entries({ whole: generateText, streamed: streamText })) {
    cases[`${name}: tools of several steps, ${way}`] = async () => {
      const cities = []
      const get_weather = tool({
        description: 'Of a city.',
        inputSchema: z.object({ city: z.string().max(12) }),
        execute: async ({ city }) => {
          cities.push(city)
          return { degrees: -3 }
        },
      })
      const result = await run({
        ...base,
        prompt: COLD,
        maxOutputTokens: 100,
        tools: { get_weather },
        stopWhen: isStepCount(3),
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < 2 ? 'required' : 'none' }),
      })
      if (way === 'streamed') await result.consumeStream()
      const steps = await result.steps
      assert.equal(steps.length, 3)
      assert.ok(cities.length >= 2)
      assert.deepEqual(
        steps.map((it) => it.finishReason === 'tool-calls'),
        [true, true, false],
      )
    }
  }

  cases[`${name}: abort`] = () =>
    aborted(
      (abortSignal) =>
        streamText({ ...base, prompt: QUESTION, maxOutputTokens: 1500, abortSignal }).textStream,
    )

  cases[`${name}: errors`] = async () => {
    const long = 'word '.repeat(5000)
    await refused(() => generateText({ ...base, prompt: long }), APICallError, 400)
    let error
    const stream = streamText({ ...base, prompt: long, onError: (told) => (error = told.error) })
    await stream.consumeStream()
    assert.ok(error instanceof APICallError)
    assert.equal(error.statusCode, 400)
    assert.match(error.message, /context|too long/)
  }
}

for (const [name, run] of Object.entries(cases)) {
  let error = ''
  try {
    await run()
  } catch (failure) {
    error = `${failure.stack ?? failure}`
  }
  console.log(JSON.stringify({ case: name, error }))
}
