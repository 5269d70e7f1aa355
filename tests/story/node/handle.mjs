export async function handle(message) {
  const { fails } = JSON.parse(message.value);
  const attempt = Number(message.headers["retry-attempt"] ?? 0);
  if (attempt < fails) throw new Error(`attempt ${attempt} of ${fails}`);
}
