#pragma once
// From a request to the handler of its route: keys, loading and draining, methods, errors as responses.
#include <memory>
#include <mutex>

#include "server/api_keys.h"
#include "server/cors.h"
#include "server/http_message.h"
#include "server/server_metrics.h"
#include "server/server_state.h"
#include "server/service.h"

namespace tetrad {

class Router final : public HttpHandler {
 public:
  // Both outlive this.
  Router(const ServerState& state, ServerMetrics& metrics, ApiKeys keys, CorsPolicy cors = {}, bool has_page = true);

  // Routes that need the model answer from when both this has been called and the state is ready.
  void set_service(std::shared_ptr<const Service> service);

  std::unique_ptr<HttpResponse> screen(const HttpRequest& head) override;
  bool is_quick(const HttpRequest& head) const override;
  Reply handle(const HttpRequest& request) noexcept override;
  HttpResponse refusal(const HttpRequest& head, int status, std::string_view message) const override;
  Headers extra_headers(const HttpRequest& head) const override { return cors_.headers(head); }
  void finished(const HttpRequest& head, int status, double seconds) override;

 private:
  std::shared_ptr<const Service> service() const;
  Reply answer(const HttpRequest& request);
  HttpResponse health() const;
  HttpResponse metrics_text() const;

  const ServerState* state_;
  ServerMetrics* metrics_;
  ApiKeys keys_;
  CorsPolicy cors_;
  bool has_page_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Service> service_;
};

}  // namespace tetrad
