# Messages of the test as jobs of Sidekiq. As a program with an argument: publishes so many.
require "net/http"
require "sidekiq"
require_relative "sidekiq_permit"

Sidekiq.configure_server do |config|
  config.redis = { url: ENV.fetch("BROKER") }
  config.server_middleware { |chain| chain.add Permits }
  # How often Sidekiq looks for jobs whose time has come.
  (config.respond_to?(:options) ? config.options : config)[:poll_interval_average] = 0.5
end
Redis.silence_deprecations = true if defined?(Redis) && Redis.respond_to?(:silence_deprecations=)
Sidekiq.configure_client { |config| config.redis = { url: ENV.fetch("BROKER") } }

class Send
  include Sidekiq::Worker
  # A denial that counted as a retry would be the last.
  sidekiq_options queue: ENV.fetch("QUEUE"), retry: 0

  def self.permit_keys(number)
    { sender: "s#{number % 4}" }
  end

  def perform(number)
    headers = { "x-message-id" => "c#{number}", "x-caller" => ENV.fetch("CALLER"), "x-key" => "s#{number % 4}" }
    answer = Net::HTTP.post(URI("http://#{ENV.fetch('PROVIDER')}/send"), "", headers)
    raise answer.code if answer.code != "202"
  end
end

Integer(ARGV[0]).times { |number| Send.perform_async(number) } if $PROGRAM_NAME == __FILE__
