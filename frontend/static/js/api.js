// Requests to the REST API as the person signed in; a refusal becomes an Error with the API's own words.
const cookie = (name) => document.cookie.split("; ").find((pair) => pair.startsWith(`${name}=`))?.split("=")[1] ?? "";

export async function send(path, body = {}, headers = {}) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRFToken": cookie("__Host-csrftoken") || cookie("csrftoken"), ...headers },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The server cannot be reached. Nothing was changed; try again.");
  }
  return answer(response);
}

export async function load(path) {
  try {
    return await answer(await fetch(path, { headers: { Accept: "application/json" } }));
  } catch (error) {
    throw error instanceof TypeError ? new Error("The server cannot be reached.") : error;
  }
}

async function answer(response) {
  if (response.ok) return response.status === 204 ? null : response.json();
  const problem = await response.json().catch(() => ({}));
  const fields = problem.errors ?? [];
  const words = problem.code === "invalid" && fields.length ? fields.map(({ path, message }) => `${path}: ${message}`).join(" ") : problem.detail;
  const error = new Error(words ?? `The server answered ${response.status}.`);
  error.code = problem.code ?? "";
  error.fields = fields;
  throw error;
}
