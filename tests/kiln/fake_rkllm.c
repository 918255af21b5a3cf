/* A runtime with the vendor's interface and none of its contents, for the tests.

   Compiled once per layout: -DLAYOUT=120, 123 or 130. The "model" is a text file that says how to behave, one
   `key=value` a line; pieces of the reply are `piece=<id>:<text>` with \n, \\ and \xHH escapes. Everything it is
   handed is checked and written to the file named by `log`, so that the tests can compare field by field. */

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum { NORMAL, WAITING, FINISH, FAILED } CallState;
typedef enum { PROMPT, TOKEN, EMBED, MULTIMODAL } InputType;
typedef enum { GENERATE, LAST_HIDDEN_LAYER, LOGITS } InferMode;

typedef struct {
    int32_t base_domain_id;
    int8_t embed_flash;
    int8_t enabled_cpus_num;
    uint32_t enabled_cpus_mask;
#if LAYOUT == 120
    uint8_t reserved[106];
#else
    uint8_t n_batch;
    int8_t use_cross_attn;
    uint8_t reserved[104];
#endif
} ExtendParam;

typedef struct {
    const char *model_path;
    int32_t max_context_len;
    int32_t max_new_tokens;
    int32_t top_k;
    int32_t n_keep;
    float top_p;
    float temperature;
    float repeat_penalty;
    float frequency_penalty;
    float presence_penalty;
    int32_t mirostat;
    float mirostat_tau;
    float mirostat_eta;
    bool skip_special_token;
#if LAYOUT == 130
    bool ignore_eos_token;
#endif
    bool is_async;
#if LAYOUT != 130
    const char *img_start;
    const char *img_end;
    const char *img_content;
#endif
    ExtendParam extend_param;
} Param;

#if LAYOUT == 130
typedef struct {
    const char *prompt;
    struct { float *embed; size_t n_tokens, n_image; const char *start, *end, *content; size_t width, height; } image;
    struct {
        float *embed;
        size_t n_frame_tokens, n_frames_per_video, n_video;
        const char *start, *end, *content;
        size_t width, height;
    } video;
} Multimodal;
#else
typedef struct {
    const char *prompt;
    float *image_embed;
    size_t n_image_tokens, n_image, image_width, image_height;
} Multimodal;
#endif

typedef struct {
#if LAYOUT != 120
    const char *role;
    bool enable_thinking;
#endif
    InputType input_type;
    union {
        const char *prompt;
        struct { float *embed; size_t n; } embed;
        struct { int32_t *ids; size_t n; } tokens;
        Multimodal multimodal;
    };
} Input;

typedef struct { const char *path, *name; float scale; } LoraAdapter;
typedef struct { const char *name; } LoraParam;
typedef struct { int save; const char *path; } PromptCacheParam;

typedef struct {
    int32_t top_k;
    float top_p, temperature, repeat_penalty, frequency_penalty, presence_penalty;
    int32_t mirostat;
    float mirostat_tau, mirostat_eta;
} SamplingParam;

typedef struct {
    InferMode mode;
    LoraParam *lora;
    PromptCacheParam *prompt_cache;
#if LAYOUT == 130
    SamplingParam *sampling;
#endif
    int keep_history;
#if LAYOUT == 130
    int32_t max_new_tokens;
#endif
} InferParam;

typedef struct {
    const char *text;
    int32_t token_id;
    struct { const float *values; int embd_size; int num_tokens; } hidden;
    struct { const float *values; int vocab_size; int num_tokens; } logits;
#if LAYOUT != 120
    struct { float prefill_ms; int prefill_tokens; float generate_ms; int generate_tokens; float memory_mb; } perf;
#endif
} Result;

#if LAYOUT == 120
typedef void (*ResultCallback)(Result *, void *, CallState);
#else
typedef int (*ResultCallback)(Result *, void *, CallState);
#endif

typedef struct {
    ResultCallback result_cb;
    void *result_userdata;
    void *tokenizer_cb, *tokenizer_userdata, *embed_cb, *embed_userdata;
} Callback;

#define MAX_PIECES 4096
#define MAX_HISTORY 65536

typedef struct {
    ResultCallback callback;
    int max_context_len, max_new_tokens;
    char log_path[512], gate_path[512];
    char *texts[MAX_PIECES];
    int ids[MAX_PIECES];
    int num_pieces;
    int delay_us, hold_after, fail_run, error_after, echo, repeat, late, deaf, vocab, nan_logits;
    pthread_mutex_t mutex;
    bool running, aborted;
    int32_t history[MAX_HISTORY];
    int num_history, num_said;
} Fake;

typedef struct {
    Fake *fake;
    InferMode mode;
    char *prompt;
    int limit, num_prompt;
    void *userdata;
    int status;
} Run;

static void write_log(const Fake *fake, const char *format, ...) {
    if (!fake->log_path[0]) return;
    FILE *file = fopen(fake->log_path, "a");
    if (!file) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fclose(file);
}

static char *unescaped(const char *text) {
    char *made = malloc(strlen(text) + 1), *end = made;
    while (*text) {
        unsigned value;
        if (text[0] == '\\' && text[1] == 'n') { *end++ = '\n'; text += 2; }
        else if (text[0] == '\\' && text[1] == '\\') { *end++ = '\\'; text += 2; }
        else if (text[0] == '\\' && text[1] == 'x' && sscanf(text + 2, "%2x", &value) == 1) { *end++ = (char)value; text += 4; }
        else *end++ = *text++;
    }
    *end = 0;
    return made;
}

static void write_escaped(FILE *file, const char *bytes) {
    for (const unsigned char *at = (const unsigned char *)bytes; *at; at++)
        if (*at < 0x20 || *at >= 0x7f || *at == '\\') fprintf(file, "\\x%02x", *at);
        else fputc(*at, file);
}

static int read_script(Fake *fake, const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    char line[65536];
    int status = 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = 0;
        int number = atoi(value);
        if (!strcmp(line, "log")) snprintf(fake->log_path, sizeof fake->log_path, "%s", value);
        else if (!strcmp(line, "gate")) snprintf(fake->gate_path, sizeof fake->gate_path, "%s", value);
        else if (!strcmp(line, "delay_us")) fake->delay_us = number;
        else if (!strcmp(line, "hold_after")) fake->hold_after = number;
        else if (!strcmp(line, "fail_init")) status = number;
        else if (!strcmp(line, "fail_run")) fake->fail_run = number;
        else if (!strcmp(line, "error_after")) fake->error_after = number;
        else if (!strcmp(line, "echo")) fake->echo = number;
        else if (!strcmp(line, "repeat")) fake->repeat = number;
        else if (!strcmp(line, "late")) fake->late = number;
        else if (!strcmp(line, "deaf")) fake->deaf = number;
        else if (!strcmp(line, "vocab")) fake->vocab = number;
        else if (!strcmp(line, "nan_logits")) fake->nan_logits = number;
        else if (!strcmp(line, "piece") && fake->num_pieces < MAX_PIECES) {
            char *text = strchr(value, ':');
            if (!text) { status = -2; break; }
            fake->ids[fake->num_pieces] = number;
            fake->texts[fake->num_pieces++] = unescaped(text + 1);
        }
    }
    fclose(file);
    return status;
}

EXPORT Param rkllm_createDefaultParam(void) {
    Param param;
    memset(&param, 0, sizeof param);
    param.max_context_len = 512;
    param.max_new_tokens = -1;
    param.top_k = 40;
    param.n_keep = 0;
    param.top_p = 0.9f;
    param.temperature = 0.8f;
    param.repeat_penalty = 1.1f;
    param.mirostat_tau = 5.0f;
    param.mirostat_eta = 0.1f;
    param.skip_special_token = true;
    param.extend_param.enabled_cpus_num = 4;
    param.extend_param.enabled_cpus_mask = 0xf0;
    memset(param.extend_param.reserved, 0xa5, sizeof param.extend_param.reserved);
    return param;
}

#if LAYOUT == 130
EXPORT int rkllm_init(void **handle, Param *param, Callback *callbacks) {
    ResultCallback callback = callbacks ? callbacks->result_cb : NULL;
    if (callbacks && (callbacks->tokenizer_cb || callbacks->embed_cb)) return -10;
#else
EXPORT int rkllm_init(void **handle, Param *param, ResultCallback callback) {
#endif
    if (!handle || !param || !callback || !param->model_path) return -11;
    Fake *fake = calloc(1, sizeof *fake);
    fake->vocab = 1000;
    fake->hold_after = -1;
    pthread_mutex_init(&fake->mutex, NULL);
    int status = read_script(fake, param->model_path);
    for (size_t i = 0; i < sizeof param->extend_param.reserved; i++)
        if (param->extend_param.reserved[i] != 0xa5) status = -12;
    if (param->is_async || param->mirostat != 0 || param->mirostat_tau != 5.0f) status = -13;
#if LAYOUT == 130
    if (param->ignore_eos_token) status = -14;
#else
    if (param->img_start || param->img_end || param->img_content) status = -14;
#endif
    if (param->extend_param.enabled_cpus_num != 4 || param->extend_param.enabled_cpus_mask != 0xf0) status = -15;
    write_log(fake,
        "init path=%s max_context_len=%d max_new_tokens=%d top_k=%d n_keep=%d top_p=%.6g temperature=%.6g"
        " repeat_penalty=%.6g frequency_penalty=%.6g presence_penalty=%.6g skip_special_token=%d embed_flash=%d size=%zu",
        param->model_path, param->max_context_len, param->max_new_tokens, param->top_k, param->n_keep,
        (double)param->top_p, (double)param->temperature, (double)param->repeat_penalty,
        (double)param->frequency_penalty, (double)param->presence_penalty, param->skip_special_token,
        param->extend_param.embed_flash, sizeof *param);
    if (status) return status;
    fake->callback = callback;
    fake->max_context_len = param->max_context_len;
    fake->max_new_tokens = param->max_new_tokens;
    *handle = fake;
    return 0;
}

static void call(Fake *fake, void *userdata, CallState state, const char *text, int id, int num_prompt, int num_said) {
    Result result;
    memset(&result, 0, sizeof result);
    /* The library's own memory, gone after the call: whoever keeps the pointer reads freed memory. */
    char *copy = text ? strdup(text) : NULL;
    result.text = copy;
    result.token_id = id;
#if LAYOUT != 120
    if (state == FINISH) {
        result.perf.prefill_ms = 12.5f;
        result.perf.prefill_tokens = num_prompt;
        result.perf.generate_ms = 50.0f;
        result.perf.generate_tokens = num_said;
        result.perf.memory_mb = 100.0f;
    }
#else
    (void)num_prompt, (void)num_said;
#endif
    fake->callback(&result, userdata, state);
    free(copy);
}

static bool ends_inside_character(const char *text) {
    size_t length = strlen(text), back = 0;
    while (back < 4 && back < length && ((unsigned char)text[length - 1 - back] & 0xc0) == 0x80) back++;
    if (back >= length) return back > 0;
    unsigned char lead = (unsigned char)text[length - 1 - back];
    size_t wanted = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    return back < wanted;
}

static bool over(Fake *fake) {
    pthread_mutex_lock(&fake->mutex);
    bool aborted = fake->aborted;
    pthread_mutex_unlock(&fake->mutex);
    return aborted && !fake->deaf;
}

static void pause_us(Fake *fake, int microseconds) {
    for (; microseconds > 0 && !over(fake); microseconds -= 2000) usleep(microseconds < 2000 ? microseconds : 2000);
}

/* Until the run is aborted or the file named by `gate` is there. */
static void wait_at_gate(Fake *fake) {
    while (!over(fake) && (!fake->gate_path[0] || access(fake->gate_path, F_OK))) usleep(2000);
}

/* The text of piece `index`: scripted, or the prompt again, three bytes at a time. */
static char *next_piece(Run *run, int index, int *id) {
    Fake *fake = run->fake;
    if (fake->echo) {
        size_t length = strlen(run->prompt), start = (size_t)index * 3;
        *id = index;
        return start >= length ? NULL : strndup(run->prompt + start, 3);
    }
    int total = fake->num_pieces * (fake->repeat > 1 ? fake->repeat : 1);
    if (index >= total || !fake->num_pieces) return NULL;
    *id = fake->ids[index % fake->num_pieces];
    return strdup(fake->texts[index % fake->num_pieces]);
}

static void give_logits(Run *run) {
    Fake *fake = run->fake;
    float *values = malloc(sizeof(float) * (size_t)fake->vocab);
    for (int i = 0; i < fake->vocab; i++) values[i] = -1.0f - 0.001f * (float)i;
    if (fake->num_pieces) {
        int said = fake->num_said < fake->num_pieces ? fake->num_said : fake->num_pieces - 1;
        values[fake->ids[said] % fake->vocab] = 20.0f;
    } else {
        uint32_t hash = 1;
        for (int i = 0; i < fake->num_history; i++) hash = hash * 31u + (uint32_t)fake->history[i] + 1u;
        values[hash % (uint32_t)fake->vocab] = 20.0f;
        values[(hash / 7u) % (uint32_t)fake->vocab] += 20.5f;
    }
    if (fake->nan_logits) memset(values, 0xff, sizeof(float) * (size_t)fake->vocab);
    Result result;
    memset(&result, 0, sizeof result);
    result.logits.values = values;
    result.logits.vocab_size = fake->vocab;
    result.logits.num_tokens = 1;
    fake->callback(&result, run->userdata, NORMAL);
    free(values);
    call(fake, run->userdata, FINISH, NULL, 0, run->num_prompt, 1);
}

static void *late_call(void *argument) {
    Run *run = argument;
    usleep(30000);
    call(run->fake, run->userdata, NORMAL, "LATE", 7, 0, 0);
    free(run->prompt);
    free(run);
    return NULL;
}

static void *work(void *argument) {
    Run *run = argument;
    Fake *fake = run->fake;
    if (run->mode == LOGITS) {
        pause_us(fake, fake->delay_us);
        give_logits(run);
        return NULL;
    }
    int said = 0, id = 0;
    char *text;
    while (!over(fake) && said < run->limit && (text = next_piece(run, said, &id))) {
        if (fake->error_after && said >= fake->error_after) {
            free(text);
            call(fake, run->userdata, FAILED, NULL, 0, 0, 0);
            run->status = -20;
            return NULL;
        }
        if (said == fake->hold_after) wait_at_gate(fake);
        pause_us(fake, fake->delay_us);
        said++;
        call(fake, run->userdata, ends_inside_character(text) ? WAITING : NORMAL, text, id, 0, 0);
        free(text);
    }
    call(fake, run->userdata, FINISH, NULL, 0, run->num_prompt, said);
    return NULL;
}

EXPORT int rkllm_run(void *handle, Input *input, InferParam *infer, void *userdata) {
    Fake *fake = handle;
    if (!fake || !input || !infer) return -30;
    pthread_mutex_lock(&fake->mutex);
    bool busy = fake->running;
    if (!busy) { fake->running = true; fake->aborted = false; }
    pthread_mutex_unlock(&fake->mutex);
    if (busy) { write_log(fake, "VIOLATION run while busy"); return -31; }

    int status = 0;
    Run *run = calloc(1, sizeof *run);
    run->fake = fake;
    run->mode = infer->mode;
    run->userdata = userdata;
    run->limit = fake->max_new_tokens;
    FILE *log = fake->log_path[0] ? fopen(fake->log_path, "a") : NULL;
    if (!log) log = fopen("/dev/null", "a");
    fprintf(log, "run mode=%d keep_history=%d", infer->mode, infer->keep_history);
    if (infer->lora || infer->prompt_cache || !userdata) status = -32;
    if (infer->keep_history != 0 && infer->keep_history != 1) status = -32;
    if (infer->mode != GENERATE && infer->mode != LOGITS) status = -32;
#if LAYOUT != 120
    if (!input->role || strcmp(input->role, "user")) status = -33;
    fprintf(log, " enable_thinking=%d", input->enable_thinking);
#endif
#if LAYOUT == 130
    SamplingParam *s = infer->sampling;
    if (!s || s->mirostat != 0 || s->mirostat_tau != 5.0f || s->top_k < 1 || infer->max_new_tokens < 1) status = -34;
    else {
        run->limit = infer->max_new_tokens;
        fprintf(log,
            " max_new_tokens=%d top_k=%d top_p=%.6g temperature=%.6g repeat_penalty=%.6g frequency_penalty=%.6g"
            " presence_penalty=%.6g", infer->max_new_tokens, s->top_k, (double)s->top_p, (double)s->temperature,
            (double)s->repeat_penalty, (double)s->frequency_penalty, (double)s->presence_penalty);
    }
#endif
    if (!infer->keep_history) fake->num_history = 0;
    if (input->input_type == PROMPT && input->prompt) {
        run->prompt = strdup(input->prompt);
        run->num_prompt = (int)(strlen(run->prompt) + 3) / 4;
        fprintf(log, " prompt=");
        write_escaped(log, run->prompt);
    } else if (input->input_type == TOKEN && input->tokens.ids && input->tokens.n) {
        run->prompt = strdup("");
        run->num_prompt = (int)input->tokens.n;
        fprintf(log, " tokens=");
        for (size_t i = 0; i < input->tokens.n; i++) {
            fprintf(log, i ? ",%d" : "%d", input->tokens.ids[i]);
            if (fake->num_history < MAX_HISTORY) fake->history[fake->num_history++] = input->tokens.ids[i];
        }
        fake->num_said = input->tokens.n > 1 ? 0 : fake->num_said + 1;
        if (fake->num_history > fake->max_context_len) status = -36;
    } else {
        status = -35;
    }
    fputc('\n', log);
    fclose(log);
    if (status) write_log(fake, "VIOLATION run %d", status);
    if (!status) status = fake->fail_run;
    if (!status) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, run);
        pthread_join(thread, NULL);
        status = run->status;
    }
    pthread_mutex_lock(&fake->mutex);
    bool aborted = fake->aborted;
    fake->running = false;
    pthread_mutex_unlock(&fake->mutex);
    if (aborted) write_log(fake, "aborted");
    if (aborted && fake->late) {
        pthread_t thread;
        pthread_create(&thread, NULL, late_call, run);
        pthread_detach(thread);
    } else {
        free(run->prompt);
        free(run);
    }
    return status;
}

EXPORT int rkllm_run_async(void *handle, Input *input, InferParam *infer, void *userdata) {
    (void)handle, (void)input, (void)infer, (void)userdata;
    return -1;
}

EXPORT int rkllm_abort(void *handle) {
    Fake *fake = handle;
    pthread_mutex_lock(&fake->mutex);
    fake->aborted = true;
    pthread_mutex_unlock(&fake->mutex);
    return 0;
}

EXPORT int rkllm_is_running(void *handle) {
    Fake *fake = handle;
    pthread_mutex_lock(&fake->mutex);
    int running = fake->running;
    pthread_mutex_unlock(&fake->mutex);
    return running;
}

EXPORT int rkllm_destroy(void *handle) {
    Fake *fake = handle;
    if (!fake) return -1;
    write_log(fake, "destroy running=%d", rkllm_is_running(fake));
    if (fake->late) return 0; /* a late callback may still be on its way */
    for (int i = 0; i < fake->num_pieces; i++) free(fake->texts[i]);
    pthread_mutex_destroy(&fake->mutex);
    free(fake);
    return 0;
}

#if LAYOUT == 120
EXPORT int rkllm_clear_kv_cache(void *handle, int keep_system_prompt) {
    int *start = NULL, *end = NULL;
#else
EXPORT int rkllm_clear_kv_cache(void *handle, int keep_system_prompt, int *start, int *end) {
#endif
    Fake *fake = handle;
    write_log(fake, "clear keep_system_prompt=%d range=%d", keep_system_prompt, start || end);
    fake->num_history = 0;
    return 0;
}

EXPORT int rkllm_set_chat_template(void *handle, const char *system, const char *prefix, const char *postfix) {
    write_log(handle, "template system=[%s] prefix=[%s] postfix=[%s]", system, prefix, postfix);
    return 0;
}

#if LAYOUT != 120
EXPORT int rkllm_get_kv_cache_size(void *handle, int *sizes) {
    sizes[0] = ((Fake *)handle)->num_history;
    return 0;
}
#ifndef VERSION
#define VERSION (LAYOUT == 130 ? "1.3.0" : "1.2.3")
#endif
EXPORT const char *rkllm_fake_version(void) { return VERSION; }
#endif
