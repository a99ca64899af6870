import { testExamples } from "../examples.js";

await testExamples("ai", "@langchain/openai");
