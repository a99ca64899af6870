import { testExamples } from "./examples.js";

await testExamples("openai", "@anthropic-ai/sdk");
