/* A chat that streams, embedded: cc -std=c11 chat.c $(pkg-config --cflags --libs oar) -o chat; ./chat demo */
#include <oar.h>
#include <stdio.h>
#include <string.h>

static int print(const oar_event* event, void* user) {
  (void)user;
  fwrite(event->text, 1, event->text_length, stdout);
  return fflush(stdout); /* a reader that went away ends the answer */
}

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, oar_last_error());
  return 1;
}

int main(int argc, char** argv) {
  oar_model model;
  if (oar_model_load(argc > 1 ? argv[1] : "demo", NULL, &model) != OAR_OK) return fail("load");
  char line[1024], messages[8192];
  while (fgets(line, sizeof line, stdin) != NULL) {
    char* out = messages + sprintf(messages, "[{\"role\": \"user\", \"content\": \"");
    for (const unsigned char* c = (unsigned char*)line; *c != '\0' && *c != '\n'; ++c)
      out += *c < ' ' || *c == '"' || *c == '\\' ? sprintf(out, "\\u%04x", *c) : sprintf(out, "%c", *c);
    strcpy(out, "\"}]");
    oar_generation answer;
    if (oar_generate_chat(model, messages, NULL, print, NULL, &answer) != OAR_OK) return fail("generate");
    oar_generation_wait(answer, -1);
    oar_generation_close(answer);
    putchar('\n');
  }
  return oar_model_close(model) == OAR_OK ? 0 : fail("close");
}
